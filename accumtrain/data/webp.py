"""WebP images in graphs, but for animations: TensorFlow 2.21 writes beyond the memory of their frames."""

from __future__ import annotations

import tensorflow as tf

BEGINNING = b"RIFF"
_NAME = b"WEBP"  # after BEGINNING and four bytes of length
_EXTENDED, _LOSSLESS, _LOSSY = b"VP8X", b"VP8L", b"VP8 "  # kinds, after the name
_FLAGS, _ANIMATED = 20, 2  # the place of the flags of the extended kind, and one of them
_HEADER = 30  # bytes


def fault_in(head: bytes) -> str | None:
    """What keeps a WebP that begins so from being read; None if nothing does. Called outside of graphs."""
    if len(head) < _HEADER or head[8:12] != _NAME:
        return "is a truncated WebP, or another RIFF file"
    if not hasattr(tf.io, "decode_webp"):
        return f"is a WebP, which TensorFlow {tf.__version__} can't decode"
    animated = head[12:16] == _EXTENDED and head[_FLAGS] & _ANIMATED
    return "is an animation, and no single image" if animated else None


def size_of(encoded: tf.Tensor) -> tf.Tensor:
    """Height and width, int32 [2], in the header. An animation is an error, and so is another RIFF file."""
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


def decode(encoded: tf.Tensor) -> tf.Tensor:
    """uint8 [height, width, 3]."""
    return tf.io.decode_image(encoded, expand_animations=False)[..., :3]
