"""Explicit order between operations of a graph. The order decides which tensors are in memory at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.python.xla import optimization_barrier

from accumtrain.backprop.target import is_for_xla


def after(operations: Sequence[Any], tensors: Any) -> Any:
    """Returns the same tensors, available only when all of `operations` (tensors or operations) are done.

    A None among the tensors stays None, and one among the operations, such as the gradient of an integer, is done. XLA
    drops control dependencies. It keeps optimization barriers, but these wait for tensors only.
    """
    first, flat = _without_none(operations), tf.nest.flatten(tensors)
    waiting = iter(_after(first, [tensor for tensor in flat if tensor is not None]))
    return tf.nest.pack_sequence_as(tensors, [None if tensor is None else next(waiting) for tensor in flat])


def _after(first: list[Any], then: list[tf.Tensor]) -> list[tf.Tensor]:
    if not then:
        return then
    if is_for_xla():
        awaited = [value for value in first if isinstance(value, tf.Tensor)]
        return optimization_barrier(*awaited, *then)[len(awaited) :]
    with tf.control_dependencies(first):
        # not tf.identity: the graph optimizer would move casts in front of it, and out of this order
        return tf.identity_n(then)


@contextmanager
def computed_after(operations: Sequence[Any], tensors: Any) -> Iterator[Any]:
    """Yields the same tensors. What is computed from them within this context waits for `operations`."""
    if is_for_xla():
        yield after(operations, tensors)
        return
    with tf.control_dependencies(_without_none(operations)):
        yield tensors


def _without_none(operations: Sequence[Any]) -> list[Any]:
    return [each for each in tf.nest.flatten(operations) if each is not None]
