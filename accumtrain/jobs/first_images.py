"""The first images of a run as a person can look at them."""

from __future__ import annotations

import tensorflow as tf

from accumtrain.data.pipeline import train_batches
from accumtrain.data.source import Data

CHANNELS = (1, 3, 4)  # of a PNG file


def first_images(data: Data, count: int, seed: int) -> list[bytes]:
    """The first `count` images of the training stream, augmented, as PNG files; none if the inputs are no images.

    Each is spread over the range of grey values by itself, which undoes the standardisation but for contrast.
    """
    images = next(iter(train_batches(data, batch=count, first=0, seed=seed)))["image"]
    if images.shape.rank != 4 or images.shape[-1] not in CHANNELS:
        return []
    low, high = (edge(images, axis=(1, 2, 3), keepdims=True) for edge in (tf.reduce_min, tf.reduce_max))
    grey = tf.cast(255 * tf.math.divide_no_nan(images - low, high - low), tf.uint8)
    return [tf.io.encode_png(image).numpy() for image in grey]
