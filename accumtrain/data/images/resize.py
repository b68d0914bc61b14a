"""Resizing without an operation of tf.image, which exports of all formats can hold."""

from __future__ import annotations

import tensorflow as tf

from accumtrain.data.images.decode import central_window


def resize(images: tf.Tensor, height: int, width: int, *, central: bool) -> tf.Tensor:
    """Resize float32 images [N, any height, any width, C] to [N, height, width, C], bilinearly.

    Args:
        central: take the central window only, without antialiasing. Else take the whole image, with antialiasing.
    """
    shape = tf.shape(images)
    number, rows, columns, channels = shape[0], shape[1], shape[2], images.shape[-1]
    top, left, high, wide = tf.unstack(central_window(shape[1:]) if central else tf.stack([0, 0, rows, columns]))
    down = _weights(rows, top, high, height, antialias=not central)  # [height, rows]
    across = _weights(columns, left, wide, width, antialias=not central)  # [width, columns]
    images = tf.matmul(down[None], tf.reshape(images, [number, rows, columns * channels]))
    images = tf.matmul(across[None], tf.reshape(images, [number * height, columns, channels]))
    return tf.reshape(images, [number, height, width, channels])


def _weights(size: tf.Tensor, first: tf.Tensor, length: tf.Tensor, new: int, *, antialias: bool) -> tf.Tensor:
    """Return the share of each of `size` old pixels in each of `new` ones. These cover `length` from `first` on."""
    scale = tf.cast(length, tf.float32) / new
    reach = tf.maximum(scale, 1.0) if antialias else 1.0
    centre = (tf.range(new, dtype=tf.float32) + 0.5) * scale - 0.5 + tf.cast(first, tf.float32)
    pixel = tf.range(size)
    inside = tf.cast((pixel >= first) & (pixel < first + length), tf.float32)
    share = tf.maximum(1.0 - tf.abs(centre[:, None] - tf.cast(pixel, tf.float32)[None]) / reach, 0.0) * inside[None]
    return share / tf.reduce_sum(share, axis=1, keepdims=True)
