"""Keras callbacks in a run of `accumtrain.fit`, as hooks of its training."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Any, TypedDict

import keras
import numpy as np

from accumtrain.console import say, warn
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.fields import convert
from accumtrain.keras.run.compiled import inner_optimizer
from accumtrain.runs.checkpoint_store import newest_manifest
from accumtrain.runs.run import Run
from accumtrain.runs.schema import Count
from accumtrain.train.hooks import EPOCH, Hook, TrainingState

KEPT, RATES = "callbacks", "learning rates"  # among the values that hooks keep
BATCH_METHODS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
TEST_BATCH_METHODS = ("on_test_batch_begin", "on_test_batch_end")
OWN = ("_model", "params")  # attributes that a training sets
OWN_STEPS = ("train_step", "test_step", "compute_loss", "compute_metrics", "call")  # methods that may be replaced
ANEW = "delete it, so that the one before is taken, or begin anew under another run_name"
PLAIN = (type(None), bool, int, str)  # of JSON


Rates = tuple[float | None, float | None]  # with which the run has begun, and at its last checkpoint


class Noted(TypedDict):
    """The facts of a callback in a checkpoint: its class, attributes, and the names of those that it can't hold."""

    name: str
    values: dict[str, Any]
    lost: list[str]


class Kept(TypedDict):
    epoch: Count
    batch: Count
    callbacks: list[Noted]


class CallbackHooks:
    """The callbacks of one call of `accumtrain.fit`.

    Args:
        model: compiled, as it stays.
        callbacks: instances of keras.callbacks.Callback, in the order of their calls.
        steps: updates of an epoch.
        finalize: gives the model the weights that it is to have after the training, before callbacks see its end.

    Attributes:
        finalized: `finalize` was called.

    Raises:
        ConfigError: one is no callback, or saves the run by itself.
    """

    def __init__(
        self,
        model: keras.Model,
        callbacks: Sequence[keras.callbacks.Callback],
        *,
        steps: int,
        finalize: Callable[[], None],
    ):
        _check(callbacks)
        self._model, self._callbacks, self._finalize = model, list(callbacks), finalize
        self._steps = steps
        self._parts = _parts_of(model)
        self._before: list[dict[str, Any]] = []  # attributes of each callback at the beginning of the training
        self._packed: list[dict[str, Any]] = []  # the same as JSON values
        self._rate: float | None = None
        self._epoch = self._batch = 0
        self._logs: dict[str, float] = {}  # of the last epoch
        self.finalized = False

    @property
    def hooks(self) -> list[Hook]:
        """The hooks that call them. Those of updates are there if a callback asks for updates."""
        events: dict[str, Callable[[TrainingState], None]] = {"begin": self._begin, "end": self._end}
        if self._callbacks:
            events |= {
                "epoch_begin": self._begin_epoch,
                "evaluation_begin": lambda state: self._call("on_test_begin", {}),
                "evaluation": lambda state: self._call("on_test_end", dict(state.metrics)),
                EPOCH: self._end_epoch,
            }
        if any(_asks_for_updates(callback) for callback in self._callbacks):
            events |= {"update_begin": self._begin_batch, "update": self._end_batch}
        return [Hook(function, 1, event, assigns=True) for event, function in events.items()]

    def first_rate(self, run: Run) -> float | None:
        """Return the learning rate that a run has begun with, and keep it in its checkpoints.

        It is that of the model, unless callbacks have changed that in this run; None for a schedule.
        """
        now = _rate_of(self._model)
        newest = newest_manifest(run.checkpoints)
        begun, left = _read_kept(newest["hooks"]["kept"] if newest else {}, RATES, Rates, [None, None])
        self._rate = begun if left is not None and left == now else now
        return self._rate

    # ---- events ----

    def _begin(self, state: TrainingState) -> None:
        self._model.stop_training = False
        params = {"verbose": 0, "epochs": state.total_epochs, "steps": self._steps}
        for callback in self._callbacks:
            callback.set_params(params)
            callback.set_model(self._model)
        self._call("on_train_begin", {})
        self._before = [dict(vars(callback)) for callback in self._callbacks]
        self._packed = [_pack_all(attributes) for attributes in self._before]
        self._restore(state)
        state.kept[RATES] = lambda: [self._rate, _rate_of(self._model)]
        if self._callbacks:
            state.kept[KEPT] = self._state

    def _begin_epoch(self, state: TrainingState) -> None:
        self._epoch, self._batch = int(state.epoch), 0
        self._call("on_epoch_begin", self._epoch, {})
        self._finish_if_asked(state)

    def _begin_batch(self, state: TrainingState) -> None:
        self._call("on_train_batch_begin", self._batch, {})

    def _end_batch(self, state: TrainingState) -> None:
        self._batch += 1
        self._call("on_train_batch_end", self._batch - 1, dict(state.epoch_metrics))
        self._finish_if_asked(state)

    def _end_epoch(self, state: TrainingState) -> None:
        evaluated = {f"val_{name}": value for name, value in state.metrics.items()}
        self._logs = {**state.epoch_metrics, **evaluated}
        self._call("on_epoch_end", self._epoch, self._logs)
        self._finish_if_asked(state)

    def _end(self, state: TrainingState) -> None:
        self._finalize()
        self.finalized = True
        self._call("on_train_end", self._logs)

    def _call(self, method: str, *arguments: Any) -> None:
        """Call a method of all callbacks."""
        for callback in self._callbacks:
            getattr(callback, method)(*arguments)
            if _parts_of(self._model) != self._parts:
                raise ConfigError(
                    f"{type(callback).__name__}.{method} has changed the optimizer, the loss, a step or what is "
                    f"trainable of {self._model.name}, and a run keeps those that it has begun with: leave that out, "
                    "and call fit once for each stage, with another run_name"
                )

    def _finish_if_asked(self, state: TrainingState) -> None:
        if self._model.stop_training:
            state.finish("a callback has set stop_training")

    # ---- the state of callbacks ----

    def _state(self) -> dict[str, Any]:
        """Return what a continued run needs, as JSON values."""
        callbacks = [
            {"name": type(callback).__name__, **_changes(vars(callback), before, packed)}
            for callback, before, packed in zip(self._callbacks, self._before, self._packed, strict=True)
        ]
        return {"epoch": self._epoch, "batch": self._batch, "callbacks": callbacks}

    def _restore(self, state: TrainingState) -> None:
        """Give callbacks what they had noted, or say that they begin anew."""
        begins: Kept = {"epoch": int(state.epoch), "batch": 0, "callbacks": []}
        kept: Kept = _read_kept(state.kept, KEPT, Kept, begins)
        state.kept.pop(KEPT, None)
        self._epoch, self._batch = kept["epoch"], kept["batch"]
        if not state.step:
            return
        known = {(each["name"], number): each for number, each in enumerate(kept["callbacks"])}
        for number, callback in enumerate(self._callbacks):
            name = type(callback).__name__
            found = known.get((name, number))
            if found is not None and not found["lost"]:
                vars(callback).update(_unpack_all(type(callback), found["values"]))
                continue
            reason = (
                f"checkpoints do not hold its {', '.join(found['lost'])}" if found else "the session before had none"
            )
            say(f"{name} begins anew, as {reason}")
            if state.epoch_metrics:  # amid an epoch
                callback.on_epoch_begin(self._epoch, {})


def _read_kept(kept: Mapping[str, Any], name: str, schema: Any, default: Any) -> Any:
    """Return a value that hooks keep in checkpoints, as a type. Raise CheckpointError for another one."""
    try:
        return convert(schema, kept.get(name, default), f"hooks.kept.{name}")
    except ConfigError as error:
        raise CheckpointError(f"a checkpoint is damaged: {error}; {ANEW}") from error


def _check(callbacks: Any) -> None:
    if not isinstance(callbacks, (list, tuple)):
        raise ConfigError(f"callbacks is a {type(callbacks).__name__}: give a list of keras.callbacks.Callback")
    for callback in callbacks:
        if not isinstance(callback, keras.callbacks.Callback):
            raise ConfigError(f"callbacks holds a {type(callback).__name__}: give a list of keras.callbacks.Callback")
        name = type(callback).__name__
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            raise ConfigError(f"callbacks: {name} saves and restores the model, as the run does itself: leave it out")
        is_own = not type(callback).__module__.startswith("keras.")
        if is_own and any(_overrides(callback, method) for method in TEST_BATCH_METHODS):
            warn(f"{name}: on_test_batch_begin and on_test_batch_end are not called, as evaluations are compiled whole")


def _asks_for_updates(callback: keras.callbacks.Callback) -> bool:
    """Return whether a callback is to be called at every update."""
    checkpoint = keras.callbacks.ModelCheckpoint
    if isinstance(callback, checkpoint) and callback.save_freq == "epoch":
        return type(callback).on_train_batch_end is not checkpoint.on_train_batch_end
    return any(_overrides(callback, method) for method in BATCH_METHODS)


def _overrides(callback: keras.callbacks.Callback, method: str) -> bool:
    """Return whether a callback has a method of its own, in its class or as an attribute."""
    return getattr(getattr(callback, method), "__func__", None) is not getattr(keras.callbacks.Callback, method)


def _rate_of(model: keras.Model) -> float | None:
    """Return the learning rate of a compiled model; None if it is a schedule."""
    rate = inner_optimizer(model)._learning_rate
    return float(rate) if isinstance(rate, keras.Variable) else None


def _parts_of(model: keras.Model) -> Any:
    """Return values that change if a part of the model that the compiled updates hold is replaced."""
    parts = (model.optimizer, inner_optimizer(model)._learning_rate, model._compile_loss, model._compile_metrics)
    replaced = [name for name in OWN_STEPS if name in vars(model)]
    return [id(part) for part in (*parts, *model.trainable_variables)], replaced


# ---- attributes as JSON values ---------------------------------------------------------------------------------------


def _changes(attributes: Mapping[str, Any], before: Mapping[str, Any], packed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that have changed: packed `values`, and the names of those that are `lost`.

    An attribute that can't be packed and is still the same object, such as a function or a file, is no state. A
    subclass of dict, such as a defaultdict, would come back as a dict, so it is lost.
    """
    values, lost = {}, []
    for name, value in attributes.items():
        if name in OWN:
            continue
        try:
            now = _pack(value)
        except TypeError:
            if name not in before or value is not before[name]:
                lost.append(name)
            continue
        if name in packed and packed[name] == now:
            continue
        if isinstance(value, np.generic) or type(_unpack(now)) is type(value):
            values[name] = now
        else:
            lost.append(name)
    return {"values": values, "lost": lost}


def _pack_all(attributes: Mapping[str, Any]) -> dict[str, Any]:
    packed = {}
    for name, value in attributes.items():
        with suppress(TypeError):
            packed[name] = _pack(value)
    return packed


def _pack(value: Any) -> Any:
    """Return a value as a JSON value, which `_unpack` turns back. Raise TypeError for one that can't be."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, PLAIN) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, float):
        return {"float": str(value)}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [_pack(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[_pack(key), _pack(item)] for key, item in value.items()]}
    if isinstance(value, FunctionType) and value is _function(value.__module__, value.__name__):
        return {"function": [value.__module__, value.__name__]}
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _unpack_all(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a callback of a class. Raise CheckpointError if they are not what `_changes` returns."""
    try:
        unpacked = {name: _unpack(value) for name, value in values.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"a checkpoint is damaged: it holds no attributes of {kind.__name__}; {ANEW}") from error
    if methods := [name for name in values if callable(getattr(kind, name, None))]:
        raise CheckpointError(f"a checkpoint is damaged: {kind.__name__}.{methods[0]} is a method; {ANEW}")
    return unpacked


def _unpack(packed: Any) -> Any:
    if not isinstance(packed, dict):
        return packed
    ((kind, content),) = packed.items()
    if kind == "float":
        return float(content)
    if kind == "dict":
        return {_unpack(key): _unpack(item) for key, item in content}
    if kind == "function":
        module, name = content
        if (function := _function(module, name)) is None:
            raise ValueError(f"{module}.{name} is no function of Keras")
        return function
    return {"tuple": tuple, "list": list}[kind](_unpack(item) for item in content)


def _function(module: str, name: str) -> Any:
    """Return the function of this name in a module of Keras that is imported; None if there is none.

    A checkpoint names no others, as a callback would call them.
    """
    found = getattr(sys.modules.get(module), name, None) if module.partition(".")[0] == "keras" else None
    return found if isinstance(found, FunctionType) else None
