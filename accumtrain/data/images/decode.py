"""Encoded images in graphs: their sizes, and their pixels, as a whole or only a window of them.

TensorFlow decodes PNG and JPEG, Pillow all others (by_pillow.py).

An encoded image is a string []. EXIF orientations are int32 [], 1 (upright) to 8; None is 1 for all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import tensorflow as tf

from accumtrain.data.images import by_pillow

# Function from the shape of an image, int32 [3], to a window: int32 [4] of top, left, height, width.
WindowOf = Callable[[tf.Tensor], tf.Tensor]

PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"  # the beginnings of files
_RGB, _CMYK = 3, 4
_CHUNK = 12  # bytes of a chunk of a PNG beside its content: length (4), name (4), checksum (4)
_PIXELS, _ANIMATION = b"IDAT", b"acTL"  # their names


def read_size(encoded: tf.Tensor) -> tf.Tensor:
    """Return height and width, int32 [2], from the header. What is no image is an error."""

    def of_png() -> tf.Tensor:
        is_whole = tf.strings.length(encoded) > 24
        with tf.control_dependencies([tf.debugging.Assert(is_whole, ["a truncated PNG"])]):
            # the first chunk has its length (4 bytes) and name (4), then width and height
            size = tf.io.decode_raw(tf.strings.substr(encoded, 16, 8), tf.int32, little_endian=False)[::-1]
            check = partial(tf.numpy_function, by_pillow.check_single, [encoded], tf.bool)
            single = tf.cond(_has_animation(encoded), check, lambda: tf.constant(True))
        with tf.control_dependencies([single]):
            return tf.identity(size)

    def of_others() -> tf.Tensor:
        size: tf.Tensor = tf.numpy_function(by_pillow.read_size, [encoded], tf.int32)
        return size

    kinds = [(tf.io.is_jpeg(encoded), lambda: tf.io.extract_jpeg_shape(encoded)[:2]), (_is_png(encoded), of_png)]
    return tf.ensure_shape(tf.case(kinds, of_others), [2])


def limit_pixels(encoded: tf.Tensor, max_pixels: int) -> tf.Tensor:
    """Return the same image. More pixels in its header are an error, before memory is taken."""
    pixels = tf.reduce_prod(tf.cast(read_size(encoded), tf.int64))
    with tf.control_dependencies([tf.debugging.Assert(pixels <= max_pixels, ["too many pixels", pixels])]):
        return tf.identity(encoded)


def decode(encoded: tf.Tensor, channels: int, orientation: tf.Tensor | None = None) -> tf.Tensor:
    """Return an image that `read_size` can read, upright, uint8 [height, width, channels]. Transparency is ignored."""

    def by_tensorflow(channels: int) -> tf.Tensor:
        return tf.io.decode_image(encoded, channels=channels, expand_animations=False)

    def in_colour() -> tf.Tensor:
        in_graph = _is_png(encoded) | tf.io.is_jpeg(encoded)
        others = partial(tf.numpy_function, by_pillow.decode, [encoded], tf.uint8)
        image = tf.cond(in_graph, lambda: by_tensorflow(_RGB), others)
        image.set_shape([None, None, _RGB])
        return image if channels == _RGB else tf.image.rgb_to_grayscale(image)

    if channels == _RGB:
        image = in_colour()
    else:
        as_it_is = _is_png(encoded) | (tf.io.is_jpeg(encoded) & ~_is_cmyk(encoded))
        image = tf.cond(as_it_is, lambda: by_tensorflow(channels), in_colour)
    image.set_shape([None, None, channels])
    return image if orientation is None else turn_upright(image, orientation)


def decode_window(
    encoded: tf.Tensor, channels: int, window_of: WindowOf, orientation: tf.Tensor | None = None
) -> tf.Tensor:
    """Return a window of an upright image, uint8 [height, width, channels]. Only that part of a JPEG is decoded."""

    def from_jpeg() -> tf.Tensor:
        window = window_of(tf.io.extract_jpeg_shape(encoded))
        return tf.image.decode_and_crop_jpeg(encoded, window, channels=channels)

    in_part = tf.io.is_jpeg(encoded)
    if channels != _RGB:
        in_part &= ~_is_cmyk(encoded)
    if orientation is not None:
        in_part &= orientation == 1
    window = tf.cond(in_part, from_jpeg, lambda: cut_window(decode(encoded, channels, orientation), window_of))
    window.set_shape([None, None, channels])
    return window


def turn_upright(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Turn and mirror an image [height, width, channels] as its EXIF orientation says."""

    def among(orientations: list[int]) -> tf.Tensor:
        return tf.reduce_any(orientation == orientations)

    shape = [None, None, image.shape[-1]]
    image = tf.cond(orientation > 4, lambda: tf.transpose(image, [1, 0, 2]), lambda: image)
    image.set_shape(shape)
    image = tf.cond(among([2, 3, 6, 7]), lambda: image[:, ::-1], lambda: image)
    image = tf.cond(among([3, 4, 7, 8]), lambda: image[::-1], lambda: image)
    image.set_shape(shape)
    return image


def cut_window(image: tf.Tensor, window_of: WindowOf) -> tf.Tensor:
    top, left, height, width = tf.unstack(window_of(tf.shape(image)))
    return image[top : top + height, left : left + width]


def central_window(shape: tf.Tensor) -> tf.Tensor:
    """Return the central window, int32 [4], of an image of shape int32 [3]: 7/8 of each side."""
    size = tf.maximum(tf.cast(tf.round(tf.cast(shape[:2], tf.float32) * 0.875), tf.int32), 1)
    return tf.concat([(shape[:2] - size) // 2, size], axis=0)


def _is_png(encoded: tf.Tensor) -> tf.Tensor:
    return tf.strings.substr(encoded, 0, len(PNG)) == PNG


def _has_animation(png: tf.Tensor) -> tf.Tensor:
    """Return whether a PNG has a chunk acTL before its pixels, as one of several images has."""
    size = tf.strings.length(png)

    def name(at: tf.Tensor) -> tf.Tensor:
        return tf.strings.substr(png, tf.minimum(at + 4, size), 4)

    def goes_on(at: tf.Tensor) -> tf.Tensor:
        return (at + _CHUNK < size) & (name(at) != _PIXELS) & (name(at) != _ANIMATION)

    def next_chunk(at: tf.Tensor) -> list[tf.Tensor]:
        (length,) = tf.unstack(tf.io.decode_raw(tf.strings.substr(png, at, 4), tf.int32, little_endian=False), 1)
        return [tf.where((length < 0) | (length > size - at - _CHUNK), size, at + _CHUNK + length)]

    (at,) = tf.while_loop(goes_on, next_chunk, [tf.constant(len(PNG))])
    return name(at) == _ANIMATION


def _is_cmyk(encoded: tf.Tensor) -> tf.Tensor:
    """Return whether this is a JPEG of four channels, which can't be decoded as grey."""
    return tf.cond(
        tf.io.is_jpeg(encoded), lambda: tf.io.extract_jpeg_shape(encoded)[2] == _CMYK, lambda: tf.constant(False)
    )
