"""Small data sets are decoded once and stay in memory; a batch is then one gather."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from accumtrain.data.encoded import EncodedSplit
from accumtrain.data.images import decode
from accumtrain.data.skipping import Example, map_or_skip
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
    def read(start: tf.Tensor) -> Example:
        index = tf.range(start, tf.minimum(start + _CHUNK, split.size))
        item, label = split.read(index)
        return {"index": index, "image": item, "label": label, "weight": tf.ones_like(index, tf.float32)}

    def pixels(example: Example) -> Example:
        orientation = split.orientation(example["index"])
        image = decode(split.image(example["image"]), split.channels, orientation)
        return {**example, "image": tf.ensure_shape(image, split.image_shape)}

    examples = map_or_skip(tf.data.Dataset.range(0, split.size, _CHUNK).map(read).unbatch(), pixels, split)
    images = np.empty([split.size, *(split.image_shape or ())], np.uint8)
    labels = np.empty([split.size], np.int32)
    weights = np.empty([split.size], np.float32)
    try:
        for batch in examples.batch(_CHUNK).as_numpy_iterator():
            rows = batch["index"]
            images[rows], labels[rows], weights[rows] = batch["image"], batch["label"], batch["weight"]
    except tf.errors.OpError:
        split.inspect_recent()
        raise
    return ArraySplit(images, labels, split.white, weights)
