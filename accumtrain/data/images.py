"""Decodes images, as a whole or only a window of them. All functions may be called in graphs."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

# Function from the shape of an image, int32 [3], to a window: int32 [4] of top, left, height, width.
WindowOf = Callable[[tf.Tensor], tf.Tensor]

PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"  # how the files begin


def size_of(encoded: tf.Tensor) -> tf.Tensor:
    """Height and width, int32 [2], in the header of a PNG or JPEG, string []. Any other content is an error."""

    def of_png() -> tf.Tensor:
        is_png = tf.strings.substr(encoded, 0, len(PNG)) == PNG
        with tf.control_dependencies([tf.debugging.Assert(is_png, ["neither PNG nor JPEG"])]):
            # the first chunk has its length (4 bytes) and name (4), then width and height
            return tf.io.decode_raw(tf.strings.substr(encoded, 16, 8), tf.int32, little_endian=False)[::-1]

    size = tf.cond(tf.io.is_jpeg(encoded), lambda: tf.io.extract_jpeg_shape(encoded)[:2], of_png)
    return tf.ensure_shape(size, [2])


def limited(encoded: tf.Tensor, max_pixels: int) -> tf.Tensor:
    """The same PNG or JPEG, string []. It is an error if its header says more pixels, before memory is taken."""
    pixels = tf.reduce_prod(tf.cast(size_of(encoded), tf.int64))
    with tf.control_dependencies([tf.debugging.Assert(pixels <= max_pixels, ["too many pixels", pixels])]):
        return tf.identity(encoded)


def decode(encoded: tf.Tensor, channels: int) -> tf.Tensor:
    """A PNG or JPEG, string [], as uint8 [height, width, channels]."""
    image = tf.io.decode_image(encoded, channels=channels, expand_animations=False)
    image.set_shape([None, None, channels])
    return image


def decode_window(encoded: tf.Tensor, channels: int, window_of: WindowOf) -> tf.Tensor:
    """A window of a PNG or JPEG, string [], as uint8 [height, width, channels]. Only that part of a JPEG is decoded."""

    def from_jpeg() -> tf.Tensor:
        window = window_of(tf.io.extract_jpeg_shape(encoded))
        return tf.image.decode_and_crop_jpeg(encoded, window, channels=channels)

    window = tf.cond(tf.io.is_jpeg(encoded), from_jpeg, lambda: cut(decode(encoded, channels), window_of))
    window.set_shape([None, None, channels])
    return window


def cut(image: tf.Tensor, window_of: WindowOf) -> tf.Tensor:
    """A window of an image [height, width, channels]."""
    top, left, height, width = tf.unstack(window_of(tf.shape(image)))
    return image[top : top + height, left : left + width]


def central_window(shape: tf.Tensor, fraction: float = 0.875) -> tf.Tensor:
    """The central window, int32 [4], of an image of shape int32 [3]: `fraction` of each side."""
    size = tf.cast(tf.round(tf.cast(shape[:2], tf.float32) * fraction), tf.int32)
    size = tf.maximum(size, 1)
    return tf.concat([(shape[:2] - size) // 2, size], axis=0)
