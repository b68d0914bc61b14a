"""What the losses of a compiled model do with a batch, seen while they are computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from accumtrain.models.keras_call import mask_of

EXAMPLES = 6  # of a batch that is made up
MARKS = (-1.0, -100.0, 255.0, math.nan)  # targets that own losses often leave out
TOLERANCE = 1e-4  # of a mean in float32
CALL_ERRORS = (ValueError, TypeError, IndexError, tf.errors.OpError)  # of a function that takes no such targets
OVER_BATCHES = (keras.losses.Dice, keras.losses.Tversky, keras.losses.Circle)  # Keras's own that may join examples
FUNCTIONS_OVER_BATCHES = (keras.losses.dice, keras.losses.tversky, keras.losses.circle)


class Trials:
    """The results of trials: eager steps call a loss or a metric each time, and it is tried once for each signature."""

    def __init__(self) -> None:
        self._results: dict[Any, tuple[Any, bool]] = {}  # with what was tried, so that its id stays its own

    def result(self, tried: Any, arguments: Any, trial: Callable[[], bool]) -> bool:
        """What `trial` returned for these shapes and dtypes of the arguments, of examples [N, ...]."""
        signature = tuple((tuple(each.shape[1:]), str(each.dtype)) for each in keras.tree.flatten(arguments))
        if (id(tried), signature) not in self._results:
            self._results[id(tried), signature] = tried, trial()
        return self._results[id(tried), signature][1]


@dataclass
class LossCalls:
    """Calls of losses.

    Attributes:
        masks: those that a loss put on its own values, such as `ignore_class` does.
        one_number: names of the losses with one number for a batch.
        unlike_means: names of the losses whose value for a batch is not the mean of those of its examples.
    """

    masks: list[tf.Tensor] = field(default_factory=list)
    one_number: list[str] = field(default_factory=list)
    unlike_means: list[str] = field(default_factory=list)

    def check(self, *, divided: bool) -> None:
        """Checks that the loss of a batch is made of those of its examples.

        Args:
            divided: masks or weights of examples act on the losses.

        Raises:
            ValueError: it is not.
        """
        if self.unlike_means:
            raise ValueError(
                f"the loss {self.unlike_means[0]} of a batch is not the mean of the losses of its examples, so it "
                "can't be joined over micro-batches: return one value for each example, as Dice(axis=(1, 2, 3)) does"
            )
        if self.one_number and divided:
            raise ValueError(
                f"the loss {self.one_number[0]} gives one number for a batch, so that weights of examples and masks "
                "do not act on it: return one value for each example"
            )


@contextmanager
def watched(losses: Sequence[keras.losses.Loss], trials: Trials) -> Iterator[LossCalls]:
    """Records the calls of losses. Those that may join examples are tried with a made-up batch.

    Raises:
        ValueError: a loss is no `keras.losses.Loss` with its `call` alone, or has one number and can't be tried.
    """
    calls = LossCalls()
    distinct = list({id(loss): loss for loss in losses}.values())  # one may be that of several outputs
    for loss in distinct:
        if type(loss).__call__ is not keras.losses.Loss.__call__ or "call" in vars(loss):
            raise ValueError(f"the loss {loss.name} has a __call__ of its own: give its class a `call`, as Keras asks")
    for loss in distinct:
        loss.call = _watched(loss, loss.call, calls, trials)
    try:
        yield calls
    finally:
        for loss in distinct:
            del loss.call  # the method of the class is seen again


def _watched(loss: keras.losses.Loss, call: Callable[..., Any], calls: LossCalls, trials: Trials) -> Callable[..., Any]:
    def watched_call(y_true: Any, y_pred: Any) -> Any:
        values = call(y_true, y_pred)
        if (mask := mask_of(values)) is not None:
            calls.masks.append(mask)
        one_number = len(values.shape) == 0
        if one_number:
            calls.one_number.append(loss.name)
        if one_number or may_join_examples(loss):
            is_mean = partial(_is_mean, loss, call, y_true, y_pred, one_number)
            if not trials.result(loss, (y_true, y_pred), is_mean):
                calls.unlike_means.append(loss.name)
        return values

    return watched_call


def may_join_examples(loss: keras.losses.Loss) -> bool:
    """Whether a loss is the user's own, or one of Keras's that may have one number for all examples."""
    function = getattr(loss, "fn", type(loss))
    return isinstance(loss, OVER_BATCHES) or function in FUNCTIONS_OVER_BATCHES or not is_of_keras(function)


def is_of_keras(code: Any) -> bool:
    """Tells Keras's own functions and classes from those of a user."""
    return str(getattr(code, "__module__", "")).startswith("keras.")


def _is_mean(loss: keras.losses.Loss, call: Callable[..., Any], y_true: Any, y_pred: Any, one_number: bool) -> bool:
    """Whether the loss of several examples is the mean of their losses, by a batch of made-up targets and outputs."""
    if one_number and loss.reduction == "sum":
        return False
    random = np.random.default_rng(0)
    with tf.init_scope():
        outputs, targets = made_up_outputs(y_pred, random), made_up_targets(y_true, random)
        try:
            same = _keeps_mean(call, targets, outputs)
        except CALL_ERRORS as error:
            if not one_number:
                return True  # a value for each example, as Keras asks of a loss
            raise ValueError(
                f"the loss {loss.name} gives one number for a batch, and whether that is a mean over its examples "
                f"can't be tried: return one value for each example\n{error}"
            ) from error
        for mark in MARKS:
            marked = keras.tree.map_structure(lambda each, mark=mark: _with_mark(each, mark), targets)
            try:
                same = same and _keeps_mean(call, marked, outputs)
            except CALL_ERRORS:
                continue  # so it leaves no such targets out
    return same


def _keeps_mean(call: Callable[..., Any], targets: Any, outputs: Any) -> bool:
    """Whether the value of a batch is the mean of those of its examples.

    Raises:
        ValueError: neither is finite.
    """

    def mean_of(examples: slice) -> float:
        batch = keras.tree.map_structure(lambda tensor: tensor[examples], (targets, outputs))
        return float(tf.reduce_mean(call(*batch)))

    whole, mean = mean_of(slice(None)), float(np.mean([mean_of(slice(at, at + 1)) for at in range(EXAMPLES)]))
    if not np.isfinite([whole, mean]).any():
        raise ValueError(f"its value is {whole}")
    return abs(whole - mean) <= TOLERANCE * max(abs(whole), abs(mean), 1e-3)


def made_up_outputs(like: Any, random: np.random.Generator) -> Any:
    """Probabilities for `EXAMPLES` examples, in the structure, shapes and dtypes of outputs."""
    return keras.tree.map_structure(lambda each: _filled(each, random.uniform(0.1, 0.9, _shape(each))), like)


def made_up_targets(like: Any, random: np.random.Generator) -> Any:
    """Targets of 0 and 1 for `EXAMPLES` examples, in the structure, shapes and dtypes of others."""
    return keras.tree.map_structure(lambda each: _filled(each, random.integers(0, 2, _shape(each))), like)


def _shape(like: tf.Tensor) -> list[int]:
    return [EXAMPLES, *(3 if size is None else size for size in like.shape[1:])]


def _filled(like: tf.Tensor, values: np.ndarray) -> tf.Tensor:
    return tf.constant(values, like.dtype)


def _with_mark(targets: tf.Tensor, mark: float) -> tf.Tensor:
    """Every second target of the later examples replaced, so that examples differ in how many they keep."""
    flat = targets.numpy().reshape(EXAMPLES, -1)
    flat[EXAMPLES // 2 :, ::2] = mark
    return tf.constant(flat.reshape(targets.shape), targets.dtype)
