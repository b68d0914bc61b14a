"""Small data sets are decoded once and stay in memory; a batch is then one gather."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from accumtrain.data.encoded import EncodedSplit
from accumtrain.data.images import decode
from accumtrain.data.source import ArraySplit, Split

# Limit for one split. MNIST and CIFAR are below it.
RESIDENT_BYTES = 256 * 2**20
_CHUNK = 256


def resident(split: Split) -> Split:
    """The split itself, or its decoded copy (made on first use) where that fits in RESIDENT_BYTES.

    Raises:
        DataError: An image can't be read.
    """
    if not isinstance(split, EncodedSplit) or split.image_shape is None:
        return split
    if split.size * math.prod(split.image_shape) > RESIDENT_BYTES:
        return split
    if split.decoded is None:
        split.decoded = _decode_all(split)
    return split.decoded


def _decode_all(split: EncodedSplit) -> ArraySplit:
    def read(start: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return split.read(tf.range(start, tf.minimum(start + _CHUNK, split.size)))

    def pixels(item: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.ensure_shape(decode(split.load(item), split.channels), split.image_shape), label

    examples = tf.data.Dataset.range(0, split.size, _CHUNK).map(read).unbatch()
    images = np.empty([split.size, *(split.image_shape or ())], np.uint8)
    labels = np.empty([split.size], np.int32)
    done = 0
    try:
        for batch in examples.map(pixels, tf.data.AUTOTUNE).batch(_CHUNK).as_numpy_iterator():
            rows = slice(done, done + len(batch[1]))
            images[rows], labels[rows] = batch
            done = rows.stop
    except tf.errors.OpError:
        split.inspect_recent()
        raise
    return ArraySplit(images, labels, split.white)
