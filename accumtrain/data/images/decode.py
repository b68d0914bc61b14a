"""PNG, JPEG, WebP and BMP in graphs: their sizes, and their pixels, as a whole or only a window of them.

An encoded image is a string []. EXIF orientations are int32 [], 1 (upright) to 8; None is 1 for all.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

# Function from the shape of an image, int32 [3], to a window: int32 [4] of top, left, height, width.
WindowOf = Callable[[tf.Tensor], tf.Tensor]

PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"  # the beginnings of files
_RGB, _CMYK = 3, 4


def read_size(encoded: tf.Tensor) -> tf.Tensor:
    """Return height and width, int32 [2], from the header of a PNG, JPEG, WebP or BMP. Other content is an error."""

    def of_png() -> tf.Tensor:
        is_png = _begins(encoded, PNG) & (tf.strings.length(encoded) > 24)
        with tf.control_dependencies([tf.debugging.Assert(is_png, ["neither PNG, JPEG, WebP nor BMP"])]):
            # the first chunk has its length (4 bytes) and name (4), then width and height
            return tf.io.decode_raw(tf.strings.substr(encoded, 16, 8), tf.int32, little_endian=False)[::-1]

    def of_others() -> tf.Tensor:
        other = [(_begins(encoded, WEBP_HEADER_BYTES), lambda: read_webp_size(encoded))]
        return tf.case([*other, (_begins(encoded, BMP_HEADER_BYTES), lambda: read_bmp_size(encoded))], of_png)

    size = tf.cond(tf.io.is_jpeg(encoded), lambda: tf.io.extract_jpeg_shape(encoded)[:2], of_others)
    return tf.ensure_shape(size, [2])


def limit_pixels(encoded: tf.Tensor, max_pixels: int) -> tf.Tensor:
    """Return the same image. More pixels in its header are an error, before memory is taken."""
    pixels = tf.reduce_prod(tf.cast(read_size(encoded), tf.int64))
    with tf.control_dependencies([tf.debugging.Assert(pixels <= max_pixels, ["too many pixels", pixels])]):
        return tf.identity(encoded)


def decode(encoded: tf.Tensor, channels: int, orientation: tf.Tensor | None = None) -> tf.Tensor:
    """Return an image that `read_size` can read, upright, uint8 [height, width, channels]. Transparency is ignored."""
    is_webp, is_bmp = _begins(encoded, WEBP_HEADER_BYTES), _begins(encoded, BMP_HEADER_BYTES)

    def in_colour() -> tf.Tensor:
        others = [(is_webp, lambda: decode_webp(encoded)), (is_bmp, lambda: decode_bmp(encoded))]
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


def _begins(encoded: tf.Tensor, beginning: bytes) -> tf.Tensor:
    return tf.strings.substr(encoded, 0, len(beginning)) == beginning


def _is_cmyk(encoded: tf.Tensor) -> tf.Tensor:
    """Return whether this is a JPEG of four channels, which can't be decoded as grey."""
    return tf.cond(
        tf.io.is_jpeg(encoded), lambda: tf.io.extract_jpeg_shape(encoded)[2] == _CMYK, lambda: tf.constant(False)
    )


# ---- BMP: 24 or 32 bits per pixel, or 8 with a palette, without compression ----


BMP_HEADER_BYTES = b"BM"
_FILE_HEADER = 14  # bytes; then the image's header begins with its own size
_FIELDS, _FIELDS_END = 10, 34  # the place of `_Fields`
_MASKS = 54  # the place of the masks of red, green and blue, if there are any
_BGR = struct.pack("<3I", 0xFF0000, 0xFF00, 0xFF)
_PLAIN, _MASKED = 0, 3  # values of `compression`
_SMALLEST_HEADER = 40
_LARGEST_PALETTE = 4 * 256


class _Fields(NamedTuple):
    """Scalars int32. `bits`: those of a pixel, beside the number of planes in the lower half."""

    pixels: tf.Tensor
    header: tf.Tensor
    width: tf.Tensor
    height: tf.Tensor
    bits: tf.Tensor
    compression: tf.Tensor


def find_bmp_fault(head: bytes) -> str | None:
    """Return what keeps a BMP with this beginning from being read; None if nothing does. Called outside of graphs."""
    if len(head) <= _MASKS:
        return "is a truncated BMP"
    _, header, _, _, _, bits, compression = struct.unpack("<iiiiHHi", head[_FIELDS:_FIELDS_END])
    if header < _SMALLEST_HEADER:
        return "is a BMP of the old kind of OS/2"
    if bits not in (8, 24, 32):
        return f"is a BMP of {bits} bits per pixel, not of 8, 24 or 32"
    if compression == _PLAIN or (compression == _MASKED and bits == 32 and head[_MASKS:][: len(_BGR)] == _BGR):
        return None
    return "is a BMP with compression or channels in an uncommon order"


def read_bmp_size(encoded: tf.Tensor) -> tf.Tensor:
    """Return height and width, int32 [2]. What `find_bmp_fault` names is an error."""
    with tf.control_dependencies([tf.debugging.Assert(tf.strings.length(encoded) > _MASKS, ["truncated"])]):
        encoded = tf.identity(encoded)
    fields = _read_fields(encoded)
    in_order = tf.strings.substr(encoded, _MASKS, len(_BGR)) == _BGR
    bits = fields.bits
    plain = (fields.compression == _PLAIN) & ((bits == 8) | (bits == 24) | (bits == 32))
    known = (plain | ((fields.compression == _MASKED) & (bits == 32) & in_order)) & (fields.header >= _SMALLEST_HEADER)
    size = tf.stack([tf.abs(fields.height), fields.width])  # a negative height: from the top down
    with tf.control_dependencies([tf.debugging.Assert(known & tf.reduce_all(size > 0), ["no such BMP", bits])]):
        return tf.identity(size)


def decode_bmp(encoded: tf.Tensor) -> tf.Tensor:
    """Return the pixels, uint8 [height, width, 3]."""
    fields = _read_fields(encoded)
    pixels = tf.io.decode_bmp(encoded)

    def coloured() -> tf.Tensor:
        begin = tf.clip_by_value(_FILE_HEADER + fields.header, 0, tf.strings.length(encoded))
        size = tf.clip_by_value(fields.pixels - begin, 0, _LARGEST_PALETTE)
        palette = tf.io.decode_raw(tf.strings.substr(encoded, begin, size), tf.uint8)
        palette = tf.reshape(palette, [-1, 4])[:, 2::-1]  # blue, green, red and nothing
        return tf.gather(palette, tf.cast(pixels[..., 0], tf.int32))

    return tf.cond(fields.bits == 8, coloured, lambda: pixels[..., :3])


def _read_fields(encoded: tf.Tensor) -> _Fields:
    packed = tf.strings.substr(encoded, _FIELDS, _FIELDS_END - _FIELDS)
    fields = _Fields(*tf.unstack(tf.ensure_shape(tf.io.decode_raw(packed, tf.int32), [len(_Fields._fields)])))
    return fields._replace(bits=fields.bits // 2**16)


# ---- WebP, but for animations: TensorFlow 2.21 writes beyond the memory of their frames ----


WEBP_HEADER_BYTES = b"RIFF"
_NAME = b"WEBP"  # after WEBP_HEADER_BYTES and four bytes of length
_EXTENDED, _LOSSLESS, _LOSSY = b"VP8X", b"VP8L", b"VP8 "  # kinds, after the name
_FLAGS, _ANIMATED = 20, 2  # the place of the flags of the extended kind, and one of them
_HEADER = 30  # bytes


def find_webp_fault(head: bytes) -> str | None:
    """Return what keeps a WebP with this beginning from being read; None if nothing does. Called outside of graphs."""
    if len(head) < _HEADER or head[8:12] != _NAME:
        return "is a truncated WebP, or another RIFF file"
    if not hasattr(tf.io, "decode_webp"):
        return f"is a WebP, which TensorFlow {tf.__version__} can't decode"
    animated = head[12:16] == _EXTENDED and head[_FLAGS] & _ANIMATED
    return "is an animation, not a single image" if animated else None


def read_webp_size(encoded: tf.Tensor) -> tf.Tensor:
    """Return height and width, int32 [2], from the header. An animation is an error, and so is another RIFF file."""
    with tf.control_dependencies([tf.debugging.Assert(tf.strings.length(encoded) >= _HEADER, ["truncated"])]):
        header = tf.strings.substr(encoded, 0, _HEADER)
    octets = tf.ensure_shape(tf.cast(tf.io.decode_raw(header, tf.uint8), tf.int32), [_HEADER])
    name, kind = tf.strings.substr(header, 8, 4), tf.strings.substr(header, 12, 4)

    def number(first: int, count: int) -> tf.Tensor:
        return tf.add_n([octets[first + place] * 256**place for place in range(count)])

    def extended() -> tf.Tensor:
        still = octets[_FLAGS] // _ANIMATED % 2 == 0
        with tf.control_dependencies([tf.debugging.Assert(still, ["an animated WebP"])]):
            return tf.stack([number(27, 3) + 1, number(24, 3) + 1])

    def lossless() -> tf.Tensor:  # 14 bits each, after a byte of signature
        return tf.stack([number(22, 3) // 2**6 % 2**14 + 1, number(21, 2) % 2**14 + 1])

    def lossy() -> tf.Tensor:  # 14 bits each, with two of scale
        return tf.stack([number(28, 2) % 2**14, number(26, 2) % 2**14])

    known = (name == _NAME) & tf.reduce_any(kind == [_EXTENDED, _LOSSLESS, _LOSSY])
    with tf.control_dependencies([tf.debugging.Assert(known, ["no WebP"])]):
        return tf.case([(kind == _EXTENDED, extended), (kind == _LOSSLESS, lossless)], lossy)


def decode_webp(encoded: tf.Tensor) -> tf.Tensor:
    """Return the pixels, uint8 [height, width, 3]."""
    return tf.io.decode_image(encoded, expand_animations=False)[..., :3]
