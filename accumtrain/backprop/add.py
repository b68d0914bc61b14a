"""Sums and differences of a stream and what a low precision has computed."""

from __future__ import annotations

import tensorflow as tf

from accumtrain.backprop.order import after
from accumtrain.backprop.target import is_for_xla, on_cpu

PARTS = 2


def add(stream: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """stream + value, [N, ...], in the stream's precision."""
    return stream + tf.cast(value, stream.dtype)


def add_in_place(stream: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """The bits of add(stream, value), for where memory peaks.

    On CPU a value of lower precision is converted and added in parts, in place if nobody else needs the stream: as a
    whole it would take as much memory as the stream. This takes several times as long.
    """
    if value.dtype == stream.dtype or is_for_xla() or not on_cpu():
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
    """The bits of add(stream, -value), for where memory peaks."""
    return stream - value if value.dtype == stream.dtype else add_in_place(stream, -value)
