"""A batch in micro-batches whose sizes differ by one example at most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf


@dataclass(frozen=True)
class Split:
    """Micro-batches of one size, one after the other: `count` times `size` examples, from example `start` on."""

    count: int | tf.Tensor
    size: int | tf.Tensor
    start: int | tf.Tensor


def tensors_of(data: Any) -> Any:
    """Return nested arrays of NumPy, which an eager step gets, as tensors. Other values stay as they are."""
    return keras.tree.map_structure(lambda v: tf.convert_to_tensor(v) if isinstance(v, np.ndarray) else v, data)


def count_examples(data: Any) -> int | tf.Tensor:
    """Return the number of examples of nested tensors [N, ...]; a tensor if it is not static.

    Raises:
        ValueError: a tensor is sparse or ragged.
    """
    tensors = [value for value in keras.tree.flatten(data) if value is not None]
    for tensor in tensors:
        if not isinstance(tensor, tf.Tensor):
            raise ValueError(
                f"a batch with a {type(tensor).__name__} can't be split: make it dense, or fit with the micro-batch "
                "and compile(optimizer=Accumulate(optimizer, steps))"
            )
    static = tensors[0].shape[0]
    return tf.shape(tensors[0])[0] if static is None else static


def split_evenly(examples: int | tf.Tensor, steps: int) -> list[Split]:
    """Return `steps` micro-batches; fewer if there are fewer examples, as none is empty.

    Sizes are constants inside each of the returned splits, as XLA needs them to be.
    """
    if steps == 1:
        return [Split(1, examples, 0)]
    size, larger = examples // steps, examples % steps
    if isinstance(examples, int):
        found = [Split(larger, size + 1, 0), Split(steps - larger if size else 0, size, larger * (size + 1))]
        return [split for split in found if split.count]
    smaller = tf.where(size > 0, steps - larger, 0)
    return [Split(larger, size + 1, 0), Split(smaller, size, larger * (size + 1))]


def take(data: Any, split: Split, number: tf.Tensor) -> Any:
    """Return micro-batch `number` of a split of nested tensors [N, ...]. None stays None."""

    def slice_of(tensor: tf.Tensor | None) -> tf.Tensor | None:
        if tensor is None:
            return None
        rest = tensor.shape.rank - 1
        part = tf.slice(tensor, [split.start + number * split.size] + [0] * rest, [split.size] + [-1] * rest)
        part.set_shape([split.size if isinstance(split.size, int) else None, *tensor.shape[1:]])
        return part

    return keras.tree.map_structure(slice_of, data)


def put_examples(kept: tf.Tensor, new: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
    """Return `kept` [N, ...] with the examples of `new` [n, ...] from index `start` on."""
    rows = start + tf.range(tf.shape(new)[0])[:, tf.newaxis]
    return tf.tensor_scatter_nd_update(kept, rows, tf.cast(new, kept.dtype))


def run_micro_batches(function: Callable[[tf.Tensor, Any, Any], Any], data: Any, split: Split, totals: Any) -> Any:
    """Call `function(number, micro-batch, totals)` for each micro-batch of a split in a loop. Return the last totals.

    Args:
        data: nested tensors [N, ...] or None.
        totals: nested tensors that the first call gets; each returns them anew.
    """

    def body(number: tf.Tensor, totals: Any) -> tuple[tf.Tensor, Any]:
        return number + 1, function(number, take(data, split, number), totals)

    count = tf.convert_to_tensor(split.count)
    before = [total for total in tf.nest.flatten(totals) if tf.is_tensor(total)]
    with tf.control_dependencies(before):  # else a second loop begins while the first runs
        start = tf.identity(0)
    # parallel iterations would hold the activations of several micro-batches
    _, totals = tf.while_loop(lambda number, _: number < count, body, (start, totals), parallel_iterations=1)
    return totals
