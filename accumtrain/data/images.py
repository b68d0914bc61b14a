"""Decodes images, as a whole or only a window of them. All functions may be called in graphs.

An encoded image is a string []. EXIF orientations are int32 [], 1 (upright) to 8; None is 1 for all.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from accumtrain.data import bmp, webp

# Function from the shape of an image, int32 [3], to a window: int32 [4] of top, left, height, width.
WindowOf = Callable[[tf.Tensor], tf.Tensor]

PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"  # how the files begin
_RGB, _CMYK = 3, 4


def size_of(encoded: tf.Tensor) -> tf.Tensor:
    """Height and width, int32 [2], in the header of a PNG, JPEG, WebP or BMP. Any other content is an error."""

    def of_png() -> tf.Tensor:
        is_png = _begins(encoded, PNG) & (tf.strings.length(encoded) > 24)
        with tf.control_dependencies([tf.debugging.Assert(is_png, ["neither PNG, JPEG, WebP nor BMP"])]):
            # the first chunk has its length (4 bytes) and name (4), then width and height
            return tf.io.decode_raw(tf.strings.substr(encoded, 16, 8), tf.int32, little_endian=False)[::-1]

    def of_others() -> tf.Tensor:
        other = [(_begins(encoded, webp.BEGINNING), lambda: webp.size_of(encoded))]
        return tf.case([*other, (_begins(encoded, bmp.BEGINNING), lambda: bmp.size_of(encoded))], of_png)

    size = tf.cond(tf.io.is_jpeg(encoded), lambda: tf.io.extract_jpeg_shape(encoded)[:2], of_others)
    return tf.ensure_shape(size, [2])


def limited(encoded: tf.Tensor, max_pixels: int) -> tf.Tensor:
    """The same image. It is an error if its header says more pixels, before memory is taken."""
    pixels = tf.reduce_prod(tf.cast(size_of(encoded), tf.int64))
    with tf.control_dependencies([tf.debugging.Assert(pixels <= max_pixels, ["too many pixels", pixels])]):
        return tf.identity(encoded)


def decode(encoded: tf.Tensor, channels: int, orientation: tf.Tensor | None = None) -> tf.Tensor:
    """An image that `size_of` can read, upright, as uint8 [height, width, channels]. Transparency is ignored."""
    is_webp, is_bmp = _begins(encoded, webp.BEGINNING), _begins(encoded, bmp.BEGINNING)

    def in_colour() -> tf.Tensor:
        others = [(is_webp, lambda: webp.decode(encoded)), (is_bmp, lambda: bmp.decode(encoded))]
        image = tf.case(others, lambda: tf.io.decode_image(encoded, channels=_RGB, expand_animations=False))
        image.set_shape([None, None, _RGB])
        return image if channels == _RGB else tf.image.rgb_to_grayscale(image)

    only_in_colour = is_webp | is_bmp
    if channels != _RGB:
        only_in_colour |= _is_cmyk(encoded)
    image = tf.cond(
        only_in_colour, in_colour, lambda: tf.io.decode_image(encoded, channels=channels, expand_animations=False)
    )
    image.set_shape([None, None, channels])
    return image if orientation is None else upright(image, orientation)


def decode_window(
    encoded: tf.Tensor, channels: int, window_of: WindowOf, orientation: tf.Tensor | None = None
) -> tf.Tensor:
    """A window of an upright image, as uint8 [height, width, channels]. Only that part of a JPEG is decoded."""

    def from_jpeg() -> tf.Tensor:
        window = window_of(tf.io.extract_jpeg_shape(encoded))
        return tf.image.decode_and_crop_jpeg(encoded, window, channels=channels)

    in_part = tf.io.is_jpeg(encoded)
    if channels != _RGB:
        in_part &= ~_is_cmyk(encoded)
    if orientation is not None:
        in_part &= orientation == 1
    window = tf.cond(in_part, from_jpeg, lambda: cut(decode(encoded, channels, orientation), window_of))
    window.set_shape([None, None, channels])
    return window


def upright(image: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """An image [height, width, channels], turned and mirrored as its EXIF orientation says."""

    def among(orientations: list[int]) -> tf.Tensor:
        return tf.reduce_any(orientation == orientations)

    shape = [None, None, image.shape[-1]]
    image = tf.cond(orientation > 4, lambda: tf.transpose(image, [1, 0, 2]), lambda: image)
    image.set_shape(shape)
    image = tf.cond(among([2, 3, 6, 7]), lambda: image[:, ::-1], lambda: image)
    image = tf.cond(among([3, 4, 7, 8]), lambda: image[::-1], lambda: image)
    image.set_shape(shape)
    return image


def cut(image: tf.Tensor, window_of: WindowOf) -> tf.Tensor:
    """A window of an image [height, width, channels]."""
    top, left, height, width = tf.unstack(window_of(tf.shape(image)))
    return image[top : top + height, left : left + width]


def central_window(shape: tf.Tensor, fraction: float = 0.875) -> tf.Tensor:
    """The central window, int32 [4], of an image of shape int32 [3]: `fraction` of each side."""
    size = tf.cast(tf.round(tf.cast(shape[:2], tf.float32) * fraction), tf.int32)
    size = tf.maximum(size, 1)
    return tf.concat([(shape[:2] - size) // 2, size], axis=0)


def _begins(encoded: tf.Tensor, beginning: bytes) -> tf.Tensor:
    return tf.strings.substr(encoded, 0, len(beginning)) == beginning


def _is_cmyk(encoded: tf.Tensor) -> tf.Tensor:
    """Whether a JPEG has four channels, which can't be decoded as grey. False for other content."""
    return tf.cond(
        tf.io.is_jpeg(encoded), lambda: tf.io.extract_jpeg_shape(encoded)[2] == _CMYK, lambda: tf.constant(False)
    )
