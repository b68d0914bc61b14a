"""BMP images in graphs: 24 or 32 bits per pixel, or 8 with a palette, without compression."""

from __future__ import annotations

import struct
from typing import NamedTuple

import tensorflow as tf

BEGINNING = b"BM"
_FILE_HEADER = 14  # bytes; then the image's header begins with its own size
_FIELDS, _FIELDS_END = 10, 34  # the place of what `_Fields` holds
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


def fault_in(head: bytes) -> str | None:
    """What keeps a BMP that begins so from being read; None if nothing does. Called outside of graphs."""
    if len(head) <= _MASKS:
        return "is a truncated BMP"
    _, header, _, _, _, bits, compression = struct.unpack("<iiiiHHi", head[_FIELDS:_FIELDS_END])
    if header < _SMALLEST_HEADER:
        return "is a BMP of the old kind of OS/2"
    if bits not in (8, 24, 32):
        return f"is a BMP of {bits} bits per pixel, none of 8, 24 and 32"
    if compression == _PLAIN or (compression == _MASKED and bits == 32 and head[_MASKS:][: len(_BGR)] == _BGR):
        return None
    return "is a BMP with compression or channels of an uncommon order"


def size_of(encoded: tf.Tensor) -> tf.Tensor:
    """Height and width, int32 [2]. An error for what `fault_in` names."""
    with tf.control_dependencies([tf.debugging.Assert(tf.strings.length(encoded) > _MASKS, ["truncated"])]):
        encoded = tf.identity(encoded)
    fields = _fields(encoded)
    in_order = tf.strings.substr(encoded, _MASKS, len(_BGR)) == _BGR
    bits = fields.bits
    plain = (fields.compression == _PLAIN) & ((bits == 8) | (bits == 24) | (bits == 32))
    known = (plain | ((fields.compression == _MASKED) & (bits == 32) & in_order)) & (fields.header >= _SMALLEST_HEADER)
    size = tf.stack([tf.abs(fields.height), fields.width])  # a negative height: from the top down
    with tf.control_dependencies([tf.debugging.Assert(known & tf.reduce_all(size > 0), ["no such BMP", bits])]):
        return tf.identity(size)


def decode(encoded: tf.Tensor) -> tf.Tensor:
    """uint8 [height, width, 3]."""
    fields = _fields(encoded)
    pixels = tf.io.decode_bmp(encoded)

    def coloured() -> tf.Tensor:
        begin = tf.clip_by_value(_FILE_HEADER + fields.header, 0, tf.strings.length(encoded))
        size = tf.clip_by_value(fields.pixels - begin, 0, _LARGEST_PALETTE)
        palette = tf.io.decode_raw(tf.strings.substr(encoded, begin, size), tf.uint8)
        palette = tf.reshape(palette, [-1, 4])[:, 2::-1]  # blue, green, red and nothing
        return tf.gather(palette, tf.cast(pixels[..., 0], tf.int32))

    return tf.cond(fields.bits == 8, coloured, lambda: pixels[..., :3])


def _fields(encoded: tf.Tensor) -> _Fields:
    packed = tf.strings.substr(encoded, _FIELDS, _FIELDS_END - _FIELDS)
    fields = _Fields(*tf.unstack(tf.ensure_shape(tf.io.decode_raw(packed, tf.int32), [len(_Fields._fields)])))
    return fields._replace(bits=fields.bits // 2**16)
