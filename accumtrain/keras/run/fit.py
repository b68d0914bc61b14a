"""`accumtrain.fit`: a compiled Keras model in the engine, with all that a run of the command line has."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from accumtrain import dispatch
from accumtrain.config.compiled import KIND, OF_BATCHES, OF_EXAMPLES, CompiledOptimConfig, load_in_child, running_with
from accumtrain.config.read import from_mapping
from accumtrain.config.schema import Config
from accumtrain.console import say
from accumtrain.data.source import hash_texts
from accumtrain.errors import ConfigError, DataError
from accumtrain.keras.accumulate_step import SplitTrainStep
from accumtrain.keras.known import Declared, refuse_arguments
from accumtrain.keras.run.callbacks import CallbackHooks
from accumtrain.keras.run.compiled import (
    CompiledModel,
    check_metrics,
    choose_loss,
    config_errors,
    inner_optimizer,
    write_compiled,
)
from accumtrain.keras.run.examples import take_data
from accumtrain.keras.run.streams import hooks_of, reason_of
from accumtrain.keras.whole_batch import describe_own_loss
from accumtrain.models.config import STORE
from accumtrain.models.keras.applications import POLICIES
from accumtrain.models.keras.cuts import cut_model
from accumtrain.process.child import prepared_by
from accumtrain.runs.checkpoint_store import newest_manifest
from accumtrain.runs.run import FORCE, Run
from accumtrain.tasks.config import LossEntry
from accumtrain.train.hooks import hooked

JOBS = ("train", "plan", "verify")
PRECISIONS = {policy: precision for precision, policy in POLICIES.items()}
MODEL_GROUPS = ("task", "model", "optim", "schedule", "loss", "data")  # the compiled model decides these
YAML_TYPES = (int, float, str, bool, type(None))
LOSS_ATTRIBUTES = vars(keras.losses.Loss()).keys()  # of every loss


def fit(
    model: keras.Model,
    data: Any,
    *,
    job: str = "train",
    batch_size: int | None = None,
    epochs: float = 1,
    steps_per_epoch: int | None = None,
    steps: int | str | None = None,
    memory: str | int = "store",
    loss: str | None = None,
    layer_losses: str | None = None,
    memory_limit_mb: int | None = None,
    validation_data: Any = None,
    validation_split: float = 0.1,
    class_weight: Mapping[int, float] | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    run_name: str | None = None,
    run_dir: str | os.PathLike[str] = "runs",
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    **unknown: Any,
) -> dict[str, Any]:
    """Train a compiled Keras model as a run of accumtrain: accumulation, less activation memory, exact continuation.

    The model has the loss, metrics and optimizer that it is compiled with. Its weights at the call are the initial
    ones, so pre-trained weights are kept. Afterwards it has the trained weights. The same call with the same `run_name`
    continues a run that was stopped, bit for bit.

    Args:
        model: built or not, compiled, on one device.
        data: `(x, y)` or `(x, y, sample_weight)` of arrays or structures of arrays [examples, ...]; or an
            `accumtrain.Split`. Every epoch has an order of its own. Or a stream, which is not read whole and comes in
            its own order: a `tf.data.Dataset` of such examples, batched or not; a `keras.utils.PyDataset`; or a
            function that returns an iterator over batches, such as a generator function.
        job: `train`, `plan` or `verify`. `plan` measures memory and time of each micro-batch. `verify` checks that
            accumulation and recomputation keep the gradient of this model. These two leave the model as it is.
        batch_size: examples per update. None is the size of the batches of a stream, else 32.
        epochs: passes over the data, which may be a fraction; the last update counts whole.
        steps_per_epoch: of a stream, the updates that count as an epoch. None is a pass. A last batch of unknown size
            counts as a full one.
        steps: micro-batches per update, which divide `batch_size`. "auto" finds the smallest number that fits into
            memory, by trials in child processes. None is "auto" with a memory limit, else 1.
        memory: `store` keeps activations, `recompute` computes them again between cut points that are found. A number
            is a limit of all tensors in megabytes: once for a run, trials in child processes find the one of the two
            that keeps more and fits.
        loss: the form of your own losses over the examples of a batch: "mean", which is not checked, or "batch". None
            is "batch" for these, and Keras's own losses are known. With "batch" each micro-batch is computed twice, and
            the examples and outputs of an update are kept (docs/keras_details.md).
        layer_losses: "mean" if your layers give means over the examples to `add_loss`. Such layers need it.
        memory_limit_mb: megabytes of tensors at the peak, `data` not counted, that "auto" plans with.
        validation_data: like `data`. A stream must have an end. None holds out examples of arrays, evenly spaced.
        validation_split: the share of the examples that is held out without `validation_data`.
        class_weight: factor on the loss of the examples of a class, by its number, as in `model.fit`; 1 for the others.
            It is for arrays with targets of classes [examples], [examples, 1] or one-hot [examples, classes].
            Evaluations are not weighted.
        callbacks: called at the beginnings and ends of training, epochs, updates and evaluations, of job="train". A
            continued run gives each what it had noted in its attributes, or says that it begins anew.
        run_name: name of the run's folder in `run_dir`; None is that of the model.
        seed: of the order of examples, and of dropout.
        settings: other keys of the command line by their dotted names, such as {"checkpoint.every": 50}.

    Returns:
        The content of summary.json, or of the other job's file.

    Raises:
        AccumtrainError: one of its subclasses, for anything that is not a bug. Preempted, with the state saved, if
            Ctrl-C or another signal stopped the run. A script that does not catch it ends with exit code 75 and no
            traceback; a notebook shows its message.
        KeyboardInterrupt: Ctrl-C stopped another job than `train`, which saves nothing.
    """
    refuse_arguments("fit", unknown)
    _check(model, job)
    with config_errors():
        declared = Declared(loss, layer_losses)
    if job == "train" and memory_limit_mb is not None and steps not in (None, "auto"):
        raise ConfigError(
            f"memory_limit_mb={memory_limit_mb} and steps={steps}: the limit is what steps='auto' plans with; leave "
            "one of the two out"
        )
    _check_count("batch_size", batch_size)
    _check_count("steps_per_epoch", steps_per_epoch)
    given = take_data(
        model,
        data,
        validation_data,
        validation_split,
        batch_size=batch_size,
        steps_per_epoch=steps_per_epoch,
        class_weight=class_weight,
    )
    compiled = CompiledModel(model, given)
    entry = choose_loss(compiled, declared)
    check_metrics(compiled)
    if entry is OF_BATCHES and declared.loss is None:
        say(describe_own_loss(model, compiled.outputs, given.batch_size, "fit"))
    steps = ("auto" if memory_limit_mb else 1) if steps is None else steps
    asked = job == "train" or memory != STORE  # other jobs leave recomputation out where there are no cut points
    values: dict[str, Any] = {
        "job": job,
        "batch_size": _number(given.batch_size),
        "train": {"epochs": _number(epochs)},
        "accum": {"steps": _number(steps)},
        "device": {"kind": KIND, "memory_limit_mb": _number(memory_limit_mb)},
        "run": {"name": run_name or model.name, "dir": os.fspath(run_dir), "seed": _number(seed)},
        "task": {"kind": KIND},
        "schedule": {"kind": "constant"},
        "data": {"kind": KIND},
        **_describe_model(model, memory, entry, cuts=_may_be_cut(model) and (asked or _is_cut(model))),
    }

    def finalize() -> None:
        """Give the model the averages of its weights, with use_ema."""
        inner_optimizer(model).finalize_variable_values(model.trainable_variables)

    per_epoch = math.ceil(given.train.size / given.batch_size)
    called = CallbackHooks(model, callbacks, steps=per_epoch, finalize=finalize)
    config = _with_first_rate(_configuration(values, settings or {}), called)
    _check_loss_of_run(Run(config), entry)
    with ExitStack() as stack:
        if job == "plan" or steps == "auto" or not isinstance(memory, str):  # tried in child processes
            stack.enter_context(prepared_by(load_in_child, str(stack.enter_context(write_compiled(compiled)))))
        if job != "train":
            stack.enter_context(compiled.unchanged())
        stack.enter_context(running_with(compiled))
        stack.enter_context(hooked([*hooks_of(given.train), *called.hooks]))
        try:
            result = dispatch.run(config)
        except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
            raise DataError(f"the model or its loss does not take a value of the data: {reason_of(error)}") from error
    if job == "train" and not called.finalized:  # as the run had ended before
        finalize()
    assert result is not None, "one process is the chief"
    return result


def _with_first_rate(config: Config, called: CallbackHooks) -> Config:
    """Return `config` with the learning rate that the run has begun with, which callbacks may have changed."""
    assert isinstance(config.optim, CompiledOptimConfig), "fit chooses it"
    rate = called.first_rate(Run(config))
    if rate is None or "learning_rate" not in config.optim.args:
        return config
    return replace(config, optim=replace(config.optim, args=config.optim.args | {"learning_rate": rate}))


def _check_loss_of_run(run: Run, entry: LossEntry) -> None:
    """Raise ConfigError if a run has begun with the loss of examples, and this is that of the batch, or the reverse."""
    words = {OF_EXAMPLES.name: "mean", OF_BATCHES.name: "batch"}
    newest = newest_manifest(run.checkpoints)
    begun = entry.name if newest is None else newest["learned"].get("loss.kind")
    if (
        begun in words and begun != entry.name and run.config.run.resume != FORCE
    ):  # others are refused as learned values
        raise ConfigError(
            f'{run.path} was begun with loss="{words[begun]}", and here it is "{words[entry.name]}": say '
            f'loss="{words[begun]}" to go on with it, or choose another run_name'
        )


def _check_count(name: str, count: Any) -> None:
    if count is not None and not (isinstance(count, (int, np.integer)) and count > 0):
        raise ConfigError(f"{name}={count!r}: must be a whole number, 1 or more")


def _check(model: keras.Model, job: str) -> None:
    if job not in JOBS:
        raise ConfigError(f"job={job!r}: choose from {', '.join(JOBS)}")
    if not isinstance(model, keras.Model):
        raise ConfigError(f"model is a {type(model).__name__}: give a keras.Model")
    if not model.compiled or model.optimizer is None:
        raise ConfigError(f"{model.name} is not compiled: call model.compile(optimizer, loss) first")
    if isinstance(vars(model).get("train_step"), SplitTrainStep):
        raise ConfigError(f"{model.name} has been given to accumulate: leave that out, and give fit the same steps")
    for method in ("train_step", "test_step", "compute_loss", "compute_metrics"):
        if getattr(type(model), method) is not getattr(keras.Model, method) or method in vars(model):
            raise ConfigError(
                f"{model.name} has a {method} of its own, in whose place accumtrain.fit has its own step: use "
                "accumtrain.keras.Accumulate or accumulate, and model.fit"
            )
    if (replicas := model.distribute_strategy.num_replicas_in_sync) > 1:
        raise ConfigError(
            f"{model.name} was made for {replicas} replicas, and accumtrain.fit trains on one device: use "
            "accumtrain.keras.accumulate and model.fit"
        )
    if model._compile_loss is None:
        raise ConfigError(f"{model.name} is compiled without a loss: give one to model.compile")
    if model.dtype_policy.name not in PRECISIONS:
        raise ConfigError(f"{model.name} computes in {model.dtype_policy.name}: choose from {', '.join(PRECISIONS)}")
    inner_optimizer(model)


def _describe_model(model: keras.Model, memory: str | int, loss: LossEntry, *, cuts: bool) -> dict[str, Any]:
    """Return keys of the configuration that describe a compiled model. A continued run must have the same."""
    optimizer, outer = inner_optimizer(model), model.optimizer
    arguments = _config(optimizer) or {"learning_rate": type(optimizer._learning_rate).__name__}
    arguments.pop("name", None)
    losses = [loss_text(entry) for entry in model._compile_loss._flat_losses]
    scale = {}
    if outer is not optimizer:
        initial, growth_every = float(outer.initial_scale), int(outer.dynamic_growth_steps)
        scale = {"loss_scale": {"initial": initial, "growth_every": growth_every}}
    return {
        "precision": PRECISIONS[model.dtype_policy.name],
        "model": {
            "kind": KIND,
            "title": model.name,
            "layers": layers_digest(model),
            "cuts": cuts,
            "memory": _number(memory),
        },
        "loss": {"kind": loss.name, "losses": losses},
        "optim": {"kind": KIND, "name": type(optimizer).__name__, "args": arguments},
        **scale,
    }


def _may_be_cut(model: keras.Model) -> bool:
    """Return whether the model is a graph of layers with one input and one output."""
    graph = getattr(model, "inputs", None) and getattr(model, "outputs", None)
    own_call = type(model).call.__module__.partition(".")[0] != "keras"
    return bool(graph) and not own_call and len(model.inputs) == len(model.outputs) == 1


def _is_cut(model: keras.Model) -> bool:
    try:
        cut_model(model.name, model)
    except ConfigError:
        return False
    return True


def _number(value: Any) -> Any:
    """Return a number of NumPy as one of Python, and anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def _configuration(values: dict[str, Any], settings: Mapping[str, Any]) -> Config:
    if not isinstance(settings, Mapping) or not all(isinstance(key, str) for key in settings):
        raise ConfigError('settings must map dotted names to values, such as {"checkpoint.every": 50}')
    for key, value in settings.items():
        group, _, name = key.partition(".")
        value = _number(value)
        if group == "ema":
            raise ConfigError(f"settings[{key!r}]: compile the model with an optimizer that has use_ema=True instead")
        given = values.get(group, {})
        if name and not isinstance(given, Mapping):
            raise ConfigError(f"settings[{key!r}]: {group} has one value and no keys; leave it out")
        if group in MODEL_GROUPS or (group in values and (not name or name in given)):
            raise ConfigError(f"settings[{key!r}]: the compiled model or an argument of fit decides it; leave it out")
        values = {**values, group: {**given, name: value} if name else value}
    config = from_mapping(values)
    if config.run.on_nonfinite == "rollback":
        raise ConfigError(
            "run.on_nonfinite=rollback: lowers optim.lr, and a compiled optimizer keeps its own rate; choose skip"
        )
    return config


# --- a compiled model as values for YAML ------------------------------------------------------------------------------


def layers_digest(model: keras.Model) -> str:
    """Return a digest of the layers' configurations and the shapes of the weights. Names are no part of it."""
    layers = [layer for layer in model._flatten_layers(include_self=False) if not isinstance(layer, keras.Model)]
    configurations = [f"{type(layer).__name__} {_without_names(_config(layer))}" for layer in layers]
    weights = [f"{tuple(variable.shape)} {variable.dtype} {variable.trainable}" for variable in model.variables]
    return hash_texts([*configurations, *weights])


def loss_text(compiled: Any) -> str:
    """Return a loss of `CompileLoss` as text, with its arguments and weight. Its name is left out: Keras numbers it."""
    loss = compiled.loss
    own = {key: value for key, value in vars(loss).items() if key not in LOSS_ATTRIBUTES or key == "reduction"}
    values = {**own, **getattr(loss, "_fn_kwargs", {})}
    shown = [f"{key}={_plain(value)}" for key, value in values.items()]
    function = getattr(loss, "fn", None)
    weight = 1.0 if compiled.loss_weights is None else compiled.loss_weights
    return f"{getattr(function, '__name__', type(loss).__name__)}({', '.join(shown)}) x {weight}"


def _config(described: Any) -> dict[str, Any]:
    """Return the configuration of a Keras object. It is empty if the object, or a part of it, has none."""
    try:
        return _plain(described.get_config())
    except NotImplementedError:
        return {}


def _plain(value: Any) -> Any:
    """Return a value that YAML can hold."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    value = _number(value)
    return value if isinstance(value, YAML_TYPES) else type(value).__name__


def _without_names(value: Any) -> Any:
    """Return a configuration without names and numbers of objects, which count on in a program."""
    if isinstance(value, Mapping):
        return {key: _without_names(item) for key, item in value.items() if key not in ("name", "shared_object_id")}
    return [_without_names(item) for item in value] if isinstance(value, list) else value
