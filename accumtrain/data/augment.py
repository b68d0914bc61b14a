"""Random changes to training images, each a pure function of the image and its key (see stream.py)."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from accumtrain.data.stream import random_below, random_uniform

# The number of each draw from one key.
_ROW, _COLUMN, _MIRROR, _WINDOW, _ORDER, _BRIGHTNESS, _SATURATION, _HUE, _CONTRAST = range(9)
_ERASED, _AREA, _ASPECT, _TOP, _LEFT = range(24, 29)  # mix.py has those before, randaugment.py those behind
_ERASED_SIDES = np.sqrt(np.linspace(0.02, 1 / 3, 1024))  # of a square of this area
_ERASED_STRETCHES = np.sqrt(np.geomspace(0.3, 1 / 0.3, 1024))  # of this aspect


def random_crop(images: tf.Tensor, key: tf.Tensor, *, padding: int, flip: bool) -> tf.Tensor:
    """Pads with zeros, crops to the old size at a random place and, with `flip`, mirrors with probability 1/2.

    Padding 4 with flips is the CIFAR augmentation of He et al. 2015, arXiv:1512.03385, section 4.2.

    Args:
        images: float32 [n, height, width, channels].
        key: uint64 [n].
        padding: Pixels added on each side.
        flip: Whether to mirror.

    Returns:
        float32 [n, height, width, channels].
    """
    _, height, width, channels = images.shape
    stride = width + 2 * padding
    padded = tf.pad(images, [[0, 0], [padding, padding], [padding, padding], [0, 0]])
    pixels = tf.reshape(padded, [-1, (height + 2 * padding) * stride, channels])

    rows = random_below(2 * padding + 1, key, _ROW)[:, None] + tf.range(height, dtype=tf.int64)  # [n, height]
    columns = tf.range(width, dtype=tf.int64)[None]
    if flip:
        columns = tf.where(_coin(key, _MIRROR)[:, None], width - 1 - columns, columns)
    columns += random_below(2 * padding + 1, key, _COLUMN)[:, None]  # [n, width]
    places = rows[:, :, None] * stride + columns[:, None, :]  # [n, height, width]
    return tf.gather(pixels, places, batch_dims=1)


def random_window(shape: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """A random window, int32 [4] of top, left, height and width, of an image whose shape is int32 [3].

    It has 0.05..1 of the area of the image and an aspect ratio of 3/4..4/3; it is the whole image if 100 trials fail.
    Szegedy et al. 2014, arXiv:1409.4842, section 6, with the ranges of the RevNet authors' code.
    """
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        bounding_boxes=tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        seed=tf.stack([tf.bitcast(key, tf.int64), _WINDOW]),
        min_object_covered=0.05,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.05, 1.0),
        max_attempts=100,
    )
    return tf.concat([begin[:2], size[:2]], axis=0)


def random_flip(image: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Mirrors an image [height, width, channels] with probability 1/2. `key`: uint64 []."""
    return tf.cond(_coin(key, _MIRROR), lambda: tf.reverse(image, axis=[1]), lambda: image)


def random_colour(image: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Jitters brightness, saturation, hue and contrast in one of two orders, as the RevNet authors' code does.

    Args:
        image: float32 [height, width, channels], 0..1; with one channel, hue and saturation are left alone.
        key: uint64 [].

    Returns:
        float32 [height, width, channels], 0..1.
    """
    image = tf.image.adjust_brightness(image, random_uniform(-32 / 255, 32 / 255, key, _BRIGHTNESS))
    contrast = random_uniform(0.5, 1.5, key, _CONTRAST)

    def tint(image: tf.Tensor) -> tf.Tensor:
        if image.shape[-1] != 3:
            return image
        image = tf.image.adjust_saturation(image, random_uniform(0.5, 1.5, key, _SATURATION))
        return tf.image.adjust_hue(image, random_uniform(-0.2, 0.2, key, _HUE))

    image = tf.cond(
        _coin(key, _ORDER),
        lambda: tf.image.adjust_contrast(tint(image), contrast),
        lambda: tint(tf.image.adjust_contrast(image, contrast)),
    )
    return tf.clip_by_value(image, 0.0, 1.0)


def jitter(image: tf.Tensor, key: tf.Tensor, strength: float) -> tf.Tensor:
    """Multiplies brightness, contrast and saturation by 1 - strength to 1 + strength each.

    Args:
        image: float32 [height, width, channels], 0..1; with one channel, saturation is left alone.
        key: uint64 [].
    """
    low, high = 1.0 - strength, 1.0 + strength
    image = tf.clip_by_value(image * random_uniform(low, high, key, _BRIGHTNESS), 0.0, 1.0)
    image = tf.clip_by_value(tf.image.adjust_contrast(image, random_uniform(low, high, key, _CONTRAST)), 0.0, 1.0)
    if image.shape[-1] == 3:
        image = tf.image.adjust_saturation(image, random_uniform(low, high, key, _SATURATION))
    return tf.clip_by_value(image, 0.0, 1.0)


def random_erasing(images: tf.Tensor, key: tf.Tensor, probability: float) -> tf.Tensor:
    """Sets a rectangle of 2 to 33 % of the area and aspect 0.3 to 3.3 to 0, the mean of normalised images.

    Zhong et al. 2017, arXiv:1708.04896, with its ranges. A rectangle longer than the image is cut to its length.

    Args:
        images: float32 [n, height, width, channels].
        key: uint64 [n].
    """
    _, height, width, _ = images.shape
    side, stretch = _one_of(_ERASED_SIDES, key, _AREA), _one_of(_ERASED_STRETCHES, key, _ASPECT)

    def along(size: int, share: tf.Tensor, draw: int) -> tf.Tensor:
        length = tf.clip_by_value(tf.cast(size * share + 0.5, tf.int64), 1, size)
        first = random_below(size - length + 1, key, draw)
        place = tf.range(size, dtype=tf.int64)[None]
        return (place >= first[:, None]) & (place < (first + length)[:, None])

    rows, columns = along(height, side * stretch, _TOP), along(width, side / stretch, _LEFT)
    drawn = random_uniform(0.0, 1.0, key, _ERASED) < probability
    erased = drawn[:, None, None] & rows[:, :, None] & columns[:, None, :]
    return tf.where(erased[..., None], 0.0, images)


def _one_of(levels: np.ndarray, key: tf.Tensor, draw: int) -> tf.Tensor:
    """One of the levels, float32 [n]. Roots and powers in a graph may depend on the size of the batch."""
    return tf.gather(tf.constant(levels, tf.float32), random_below(len(levels), key, draw))


def _coin(key: tf.Tensor, draw: int) -> tf.Tensor:
    return random_below(2, key, draw) == 1
