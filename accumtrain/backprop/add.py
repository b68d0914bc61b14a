"""Adds to a tensor a value that may have been computed in a lower precision."""

from __future__ import annotations

import tensorflow as tf

from accumtrain.backprop.order import after
from accumtrain.backprop.target import by_cpu_kernels

PARTS = 2


def add(stream: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """stream + value, both [N, ...], in the dtype of the stream. Integers take of a float what is before its point."""
    return stream + tf.cast(value, stream.dtype)


def add_in_place(stream: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """As `add`, bit for bit, but with a lower peak of memory.

    On a CPU, a value of lower precision is converted and added in PARTS parts, in place if nothing else reads the
    stream. Converted as a whole, it would take as much memory as the stream. This takes several times as long.
    """
    if value.dtype.size == stream.dtype.size or not by_cpu_kernels():
        return add(stream, value)
    count = value.shape[0] or tf.shape(value)[0]
    for part in range(PARTS):
        first, last = count * part // PARTS, count * (part + 1) // PARTS
        stream = tf.raw_ops.ScatterNdNonAliasingAdd(
            input=stream,
            indices=tf.range(first, last)[:, tf.newaxis],
            updates=tf.cast(after([stream], value)[first:last], stream.dtype),
        )
    return stream


def subtract(stream: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """stream - value, with the low peak of memory of `add_in_place`."""
    same_size = value.dtype.size == stream.dtype.size
    return stream - tf.cast(value, stream.dtype) if same_size else add_in_place(stream, -value)
