"""The numbers that a loss is divided by, as its graph has them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable

import tensorflow as tf

DIVISIONS = ("RealDiv", "DivNoNan", "Div")
OF_NO_VALUE = ("Shape", "ShapeN", "Size", "Rank", "ReadVariableOp")  # their results depend on no value of an example


def warn_of_unequal_micro_batches(loss: tf.Tensor) -> None:
    """Warns if a number that depends on values of the examples divides a loss; an eager one has no graph to look at."""
    if not tf.executing_eagerly() and _is_divided_by_values(loss):
        warnings.warn(
            "the loss is divided by a number that depends on the examples, as masks and the reduction "
            "mean_with_sample_weight do, and Accumulate counts each micro-batch alike: use "
            "accumtrain.keras.accumulate(model, steps), which weighs them, and fit with the whole batch",
            stacklevel=3,
        )


def _is_divided_by_values(loss: tf.Tensor) -> bool:
    divisors = [op.inputs[1] for op in _before([loss.op]) if op.type in DIVISIONS and op.inputs[1].shape.rank == 0]
    return any(_is_value(op) for op in _before((each.op for each in divisors), _has_inputs_of_values))


def _has_inputs_of_values(op: tf.Operation) -> bool:
    return op.type not in OF_NO_VALUE


def _is_value(op: tf.Operation) -> bool:
    return op.type == "Placeholder" and op.outputs[0].dtype != tf.resource


def _before(
    ops: Iterable[tf.Operation], goes_on: Callable[[tf.Operation], bool] = lambda op: True
) -> Iterable[tf.Operation]:
    """Operations and all that their results come from, up to those where `goes_on` says no."""
    waiting, seen = list(ops), set()
    while waiting:
        op = waiting.pop()
        if op not in seen:
            seen.add(op)
            yield op
            waiting += [each.op for each in op.inputs] if goes_on(op) else []
