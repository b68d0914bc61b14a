"""Sums of gradients: buffers of a window, of which each replica has a copy of its own, and tensors within a step."""

from __future__ import annotations

import keras
import tensorflow as tf


def name_of(variable: keras.Variable | tf.Variable) -> str:
    """A name for variables that belong to a variable of a model, or to one of TensorFlow's own."""
    return getattr(variable, "path", variable.name).replace("/", "_").replace(":", "_")


def sum_dtype(dtype: tf.DType) -> tf.DType:
    """The dtype of sums of gradients of a dtype: at least float32."""
    return dtype if dtype.size >= 4 else tf.float32


def add_gradient(total: tf.Tensor, gradient: tf.Tensor | tf.IndexedSlices | None) -> tf.Tensor:
    """total + gradient. Of an embedding's gradient only the rows that were looked up are added."""
    if gradient is None:
        return total
    if isinstance(gradient, tf.IndexedSlices):
        rows = tf.cast(gradient.values, total.dtype)
        return tf.tensor_scatter_nd_add(total, gradient.indices[:, tf.newaxis], rows)
    return total + tf.cast(gradient, total.dtype)


def new_sum(variable: keras.Variable | tf.Variable) -> keras.Variable:
    """A buffer for the gradients of a variable, in at least float32. A file holds the sum over all replicas."""
    return keras.Variable(
        "zeros",
        shape=variable.shape,
        dtype=sum_dtype(tf.as_dtype(variable.dtype)).name,
        trainable=False,
        aggregation="sum",
        synchronization="on_read",
        name=f"{name_of(variable)}_sum",
    )


def add_to(buffer: keras.Variable, gradient: tf.Tensor | tf.IndexedSlices) -> None:
    """Adds a gradient to the buffer of this replica. Of an embedding only the rows that were looked up are added."""
    if isinstance(gradient, tf.IndexedSlices):
        rows = tf.cast(gradient.values, buffer.dtype)
        tf.raw_ops.ResourceScatterAdd(resource=buffer.value.handle, indices=gradient.indices, updates=rows)
    else:
        buffer.value.assign_add(tf.cast(gradient, buffer.dtype))


def clear(buffer: keras.Variable) -> None:
    """Sets the buffer of this replica to zero."""
    buffer.value.assign(tf.zeros(buffer.shape, buffer.dtype))
