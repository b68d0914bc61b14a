"""RandAugment (Cubuk et al. 2019, arXiv:1909.13719): some of 14 operations, drawn for each image, all of one strength.

An operation takes an image, float32 [height, width, channels] of 0..1, and a strength of 0..1 with a random sign. It
turns the strength into its own unit, with the ranges of torchvision. Operations and signs depend on the key of the
image alone (see stream.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import tensorflow as tf

from accumtrain.data.stream import random_below

_FIRST = 32  # number of the first draw from a key; augment.py has those before
_GREYS = 255

Operation = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # image, and strength with a random sign, float32 []


def randaugment(image: tf.Tensor, key: tf.Tensor, count: int, strength: float, fill: np.ndarray) -> tf.Tensor:
    """Apply `count` operations, one after the other, drawn from all.

    Args:
        image: float32 [height, width, channels], 0..1.
        key: uint64 [].
        strength: 0..1; the paper's magnitude / 10.
        fill: float32 [channels], the colour from outside of the image.
    """
    operations = _operations(fill)
    for number in range(count):
        drawn = tf.cast(random_below(len(operations), key, _FIRST + 2 * number), tf.int32)
        sign = tf.cast(2 * random_below(2, key, _FIRST + 2 * number + 1) - 1, tf.float32)
        branches = [partial(operation, image, sign * strength) for operation in operations]
        changed = tf.switch_case(drawn, branches)
        image = tf.ensure_shape(tf.clip_by_value(changed, 0.0, 1.0), image.shape)
    return image


# ---- geometry ----


def _warp(kind: int, fill: np.ndarray, image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Move pixels about the centre of the image, with bilinear interpolation. `kind`: index in `_matrices`."""
    height, width = (tf.cast(size, tf.float32) for size in tf.unstack(tf.shape(image)[:2]))
    (a, b, c), (d, e, f) = _matrices(strength, height, width)[kind]
    x, y = (width - 1) / 2, (height - 1) / 2
    transform = tf.stack([a, b, c + x - a * x - b * y, d, e, f + y - d * x - e * y, 0.0, 0.0])
    moved = tf.raw_ops.ImageProjectiveTransformV3(
        images=(image - fill)[None],
        transforms=transform[None],
        output_shape=tf.shape(image)[:2],
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
    )
    return moved[0] + fill


def _matrices(strength: tf.Tensor, height: tf.Tensor, width: tf.Tensor) -> list[tuple]:
    """Return the rows of 2 x 3 matrices: of a rotation, two shears and two shifts.

    A matrix turns a position (x, y, 1) in the result into the position in the image from which the pixel is taken.
    """
    angle, shear, shift = strength * math.radians(30), 0.3 * strength, 150 / 331 * strength
    return [
        ((tf.cos(angle), -tf.sin(angle), 0.0), (tf.sin(angle), tf.cos(angle), 0.0)),
        ((1.0, shear, 0.0), (0.0, 1.0, 0.0)),
        ((1.0, 0.0, 0.0), (shear, 1.0, 0.0)),
        ((1.0, 0.0, shift * width), (0.0, 1.0, 0.0)),
        ((1.0, 0.0, 0.0), (0.0, 1.0, shift * height)),
    ]


# ---- colours ----


def _blend(other: Callable[[tf.Tensor], tf.Tensor], image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Move the image away from a poorer version of it, or towards that if the strength is negative."""
    poorer = other(image)
    return poorer + (1.0 + 0.9 * strength) * (image - poorer)


def _grey(image: tf.Tensor) -> tf.Tensor:
    return tf.image.rgb_to_grayscale(image) if image.shape[-1] == 3 else image


def _smooth(image: tf.Tensor) -> tf.Tensor:
    """Return a 3 x 3 mean in which the middle counts 5 times. The border is left alone."""
    kernel = np.ones([3, 3], np.float32)
    kernel[1, 1] = 5
    kernel = np.tile((kernel / kernel.sum())[..., None, None], [1, 1, image.shape[-1], 1])
    blurred = tf.nn.depthwise_conv2d(image[None], kernel, [1, 1, 1, 1], "SAME")[0]
    rows, columns = tf.unstack(tf.shape(image)[:2])
    row, column = tf.range(rows)[:, None, None], tf.range(columns)[None, :, None]
    inner = (row > 0) & (row < rows - 1) & (column > 0) & (column < columns - 1)
    return tf.where(inner, blurred, image)


def _posterize(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Keep 8 to 4 bits."""
    dropped = tf.cast(tf.round(4.0 * tf.abs(strength)), tf.int32)
    kept = tf.bitwise.left_shift(tf.bitwise.right_shift(_levels(image), dropped), dropped)
    return tf.cast(kept, tf.float32) / _GREYS


def _solarize(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Invert pixels brighter than a threshold of 1 to 0."""
    return tf.where(image >= 1.0 - tf.abs(strength), 1.0 - image, image)


def _stretch(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Stretch each channel to 0..1."""
    low, high = (reduce(image, axis=[0, 1]) for reduce in (tf.reduce_min, tf.reduce_max))
    return tf.where(high > low, (image - low) / tf.maximum(high - low, 1e-6), image)


def _equalize(image: tf.Tensor, strength: tf.Tensor) -> tf.Tensor:
    """Equalise the histogram of each channel, of 256 levels, by the rule of PIL.ImageOps.equalize."""

    def equalized(levels: tf.Tensor) -> tf.Tensor:
        histogram = tf.math.bincount(tf.reshape(levels, [-1]), minlength=_GREYS + 1, maxlength=_GREYS + 1)
        last = histogram[tf.reduce_max(levels)]
        step = (tf.reduce_sum(histogram) - last) // _GREYS
        table = (tf.cumsum(histogram, exclusive=True) + step // 2) // tf.maximum(step, 1)
        return tf.where(step > 0, tf.gather(tf.minimum(table, _GREYS), levels), levels)

    channels = [equalized(levels) for levels in tf.unstack(_levels(image), axis=-1)]
    return tf.cast(tf.stack(channels, axis=-1), tf.float32) / _GREYS


def _levels(image: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.round(image * _GREYS), tf.int32)


def _operations(fill: np.ndarray) -> list[Operation]:
    # of brightness, contrast, colour and sharpness
    poorer = (tf.zeros_like, lambda image: tf.reduce_mean(_grey(image)), _grey, _smooth)
    return [
        *(partial(_warp, kind, fill) for kind in range(5)),
        *(partial(_blend, other) for other in poorer),
        *(_posterize, _solarize, _stretch, _equalize, lambda image, strength: tf.identity(image)),
    ]
