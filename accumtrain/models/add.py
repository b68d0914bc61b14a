"""Sums and differences of a stream and what a low precision has computed."""

from __future__ import annotations

import tensorflow as tf

from accumtrain.models.order import after
from accumtrain.models.target import is_for_xla, on_cpu

PARTS = 2


def add(stream: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """stream + value, [N, ...], in the stream's precision.

    On CPU a value of lower precision is converted and added in parts, in place if nobody else needs the stream: as a
    whole it would take as much memory as the stream.
    """
    if value.dtype == stream.dtype:
        return stream + value
    if is_for_xla() or not on_cpu():
        return stream + tf.cast(value, stream.dtype)
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
    """The bits of add(stream, -value)."""
    return stream - value if value.dtype == stream.dtype else add(stream, -value)
