"""Random changes to training images, each a pure function of the image and its key (see stream.py)."""

from __future__ import annotations

import tensorflow as tf

from accumtrain.data.stream import random_below, random_uniform

# The number of each draw from one key.
_ROW, _COLUMN, _MIRROR, _WINDOW, _ORDER, _BRIGHTNESS, _SATURATION, _HUE, _CONTRAST = range(9)


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


def _coin(key: tf.Tensor, draw: int) -> tf.Tensor:
    return random_below(2, key, draw) == 1
