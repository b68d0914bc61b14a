"""A batch in micro-batches whose sizes differ by one example at most."""

from __future__ import annotations

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
    """Nested arrays as tensors: an eager step gets those of NumPy. None, sparse and ragged values stay as they are."""

    def tensor_of(value: Any) -> Any:
        return tf.convert_to_tensor(value) if isinstance(value, np.ndarray) else value

    return keras.tree.map_structure(tensor_of, data)


def batch_size(data: Any) -> int | tf.Tensor:
    """The number of examples of nested tensors [N, ...]; a tensor if it is not static.

    Raises:
        ValueError: a tensor is sparse or ragged.
    """
    tensors = [each for each in keras.tree.flatten(data) if each is not None]
    for each in tensors:
        if not isinstance(each, tf.Tensor):
            raise ValueError(
                f"a batch with a {type(each).__name__} can't be split: make it dense, or fit with the micro-batch and "
                "compile(optimizer=Accumulate(optimizer, steps))"
            )
    static = tensors[0].shape[0]
    return tf.shape(tensors[0])[0] if static is None else static


def splits(examples: int | tf.Tensor, steps: int) -> list[Split]:
    """`steps` micro-batches; fewer if there are fewer examples, as none is empty.

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
    """Micro-batch `number` of a split of nested tensors [N, ...]; None stays None."""

    def slice_of(tensor: tf.Tensor | None) -> tf.Tensor | None:
        if tensor is None:
            return None
        rest = tensor.shape.rank - 1
        part = tf.slice(tensor, [split.start + number * split.size] + [0] * rest, [split.size] + [-1] * rest)
        part.set_shape([split.size if isinstance(split.size, int) else None, *tensor.shape[1:]])
        return part

    return keras.tree.map_structure(slice_of, data)
