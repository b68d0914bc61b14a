"""Random changes to training images: crops, flips, colours, erasing, MixUp and CutMix.

Each is a pure function of the images and their keys (see stream.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import tensorflow as tf

from accumtrain.data.stream import random_below, random_uniform

# The number of each draw from one key; randaugment.py has those from 32 on.
_ROW, _COLUMN, _MIRROR, _WINDOW, _ORDER, _BRIGHTNESS, _SATURATION, _HUE, _CONTRAST = range(9)
_SHARE, _KIND, _MIX_ROW, _MIX_COLUMN = range(16, 20)
_ERASED, _AREA, _ASPECT, _TOP, _LEFT = range(24, 29)

_ERASED_SIDES = np.sqrt(np.linspace(0.02, 1 / 3, 1024))  # of a square of this area
_ERASED_STRETCHES = np.sqrt(np.geomspace(0.3, 1 / 0.3, 1024))  # of this aspect
_LEVELS = 4096  # of the distribution of the shares of MixUp and CutMix
_HALVINGS = 60

Batch = dict[str, tf.Tensor]


# ---- one image, or a batch of them ----


def random_crop(images: tf.Tensor, key: tf.Tensor, *, padding: int, flip: bool) -> tf.Tensor:
    """Pad with zeros, crop to the old size at a random position and, with `flip`, mirror with probability 1/2.

    Padding 4 with flips is the CIFAR augmentation of He et al. 2015, arXiv:1512.03385, section 4.2.

    Args:
        images: float32 [n, height, width, channels].
        key: uint64 [n].
        padding: Pixels added on each side.

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
    indices = rows[:, :, None] * stride + columns[:, None, :]  # [n, height, width]
    return tf.gather(pixels, indices, batch_dims=1)


def random_window(shape: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Return a random window, int32 [4] of top, left, height and width, of an image whose shape is int32 [3].

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
    """Mirror an image [height, width, channels] with probability 1/2. `key`: uint64 []."""
    return tf.cond(_coin(key, _MIRROR), lambda: tf.reverse(image, axis=[1]), lambda: image)


def random_colour(image: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Jitter brightness, saturation, hue and contrast in one of two orders, as the RevNet authors' code does.

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


def random_jitter(image: tf.Tensor, key: tf.Tensor, strength: float) -> tf.Tensor:
    """Multiply brightness, contrast and saturation by random factors of 1 - strength to 1 + strength.

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
    """Set a rectangle of 2 to 33 % of the area and aspect 0.3 to 3.3 to 0, the mean of normalised images.

    Zhong et al. 2017, arXiv:1708.04896, with its ranges. A rectangle longer than the image is cut to its length.

    Args:
        images: float32 [n, height, width, channels].
        key: uint64 [n].
    """
    _, height, width, _ = images.shape
    side, stretch = _draw_level(_ERASED_SIDES, key, _AREA), _draw_level(_ERASED_STRETCHES, key, _ASPECT)

    def along(size: int, share: tf.Tensor, draw: int) -> tf.Tensor:
        length = tf.clip_by_value(tf.cast(size * share + 0.5, tf.int64), 1, size)
        return _mask_interval(random_below(size - length + 1, key, draw), length, size)

    rows, columns = along(height, side * stretch, _TOP), along(width, side / stretch, _LEFT)
    drawn = random_uniform(0.0, 1.0, key, _ERASED) < probability
    erased = drawn[:, None, None] & rows[:, :, None] & columns[:, None, :]
    return tf.where(erased[..., None], 0.0, images)


def _draw_level(levels: np.ndarray, key: tf.Tensor, draw: int) -> tf.Tensor:
    """Return one of the levels, float32 [n]. Roots and powers in a graph may depend on the size of the batch."""
    return tf.gather(tf.constant(levels, tf.float32), random_below(len(levels), key, draw))


def _mask_interval(first: tf.Tensor, length: tf.Tensor, size: int) -> tf.Tensor:
    """Return a mask, bool [n, size], of the `length` indices from `first` on, each int64 [n]."""
    index = tf.range(size, dtype=tf.int64)[None]
    return (index >= first[:, None]) & (index < (first + length)[:, None])


def _coin(key: tf.Tensor, draw: int) -> tf.Tensor:
    return random_below(2, key, draw) == 1


# ---- MixUp and CutMix ----


@dataclass(frozen=True)
class Mix:
    """MixUp and CutMix: a training image and another one of the stream become one image with two labels.

    Share, rectangle and kind are drawn from the key of the first example. The other example is the one at the same
    position of a second stream. So a mixed example depends on seed and position alone, not on its batch.

    `mixup` and `cutmix` are the alphas of Beta(alpha, alpha); 0 turns one off.
    """

    mixup: float = 0.0
    cutmix: float = 0.0

    @property
    def is_on(self) -> bool:
        return self.mixup > 0 or self.cutmix > 0

    def __call__(self, key: tf.Tensor, own: Batch, other: Batch) -> Batch:
        """Mix two batches of image, label and weight, example by example.

        Args:
            key: of the examples of `own`, uint64 [n].

        Returns:
            The batch `own` with mixed images, `other_targets`, int32 [n], and `share`, float32 [n]. A share is the part
            of `targets` in the target, and `other_targets` has the rest. An other example of weight 0 has no part.
        """
        image = own["inputs"]
        _, height, width, _ = image.shape
        by_cutmix = self._draw_cutmix(key)
        level = random_below(_LEVELS, key, _SHARE)
        shares, side = (_beta_levels(alpha or 1.0) for alpha in (self.mixup, self.cutmix))
        share = tf.gather(tf.constant(shares), level)
        # of the sides of the image; computed here, as the roots of a graph may depend on the size of the batch
        inside = _rectangles(key, tf.gather(tf.constant(np.sqrt(1.0 - side)), level), height, width)
        kept = 1.0 - tf.reduce_sum(tf.cast(inside, tf.int32), axis=[1, 2]) / (height * width)
        share = tf.where(by_cutmix, tf.cast(kept, tf.float32), share)
        share = tf.where(other["weight"] > 0, share, 1.0)

        of_pixel = tf.where(by_cutmix[:, None, None], tf.cast(~inside, tf.float32), share[:, None, None])
        of_pixel = tf.where(other["weight"][:, None, None] > 0, of_pixel, 1.0)[..., None]
        mixed = of_pixel * image + (1.0 - of_pixel) * other["inputs"]
        return {**own, "inputs": mixed, "other_targets": other["targets"], "share": share}

    def _draw_cutmix(self, key: tf.Tensor) -> tf.Tensor:
        """Return whether CutMix is drawn, bool [n]; every second time if both are on."""
        if self.mixup and self.cutmix:
            return _coin(key, _KIND)
        return tf.fill(tf.shape(key), self.cutmix > 0)


def _rectangles(key: tf.Tensor, side: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Return masks, bool [n, height, width], of rectangles around a random pixel; `side`, float32 [n], is relative.

    What is outside of the image is cut off (Yun et al. 2019, arXiv:1905.04899).
    """

    def along(size: int, draw: int) -> tf.Tensor:
        length = tf.cast(size * side, tf.int64)
        return _mask_interval(random_below(size, key, draw) - length // 2, length, size)

    return along(height, _MIX_ROW)[:, :, None] & along(width, _MIX_COLUMN)[:, None, :]


@cache
def _beta_levels(alpha: float) -> np.ndarray:
    """Return quantiles of Beta(alpha, alpha) at the middles of _LEVELS equal parts, float32, by bisection."""
    target = (np.arange(_LEVELS) + 0.5) / _LEVELS
    low, high = np.zeros(_LEVELS), np.ones(_LEVELS)
    alphas = np.full(_LEVELS, alpha)
    with tf.init_scope():
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            below = tf.math.betainc(alphas, alphas, middle).numpy() < target
            low, high = np.where(below, middle, low), np.where(below, high, middle)
    return ((low + high) / 2).astype(np.float32)
