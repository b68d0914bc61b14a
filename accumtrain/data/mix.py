"""MixUp and CutMix: a training image and another one of the stream become one image with two labels.

Share, rectangle and kind are drawn from the key of the first example (see stream.py); the other example is the one at
the same position of a second stream. So a mixed example depends on seed and position alone, not on its batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import tensorflow as tf

from accumtrain.data.stream import random_below

_SHARE, _KIND, _ROW, _COLUMN = range(16, 20)  # the numbers of the draws from one key; augment.py has those before
_LEVELS = 4096  # of the shares' distribution
_HALVINGS = 60

Batch = dict[str, tf.Tensor]


@dataclass(frozen=True)
class Mix:
    """How images are mixed: `mixup` and `cutmix` are the alphas of Beta(alpha, alpha); 0 turns one off."""

    mixup: float = 0.0
    cutmix: float = 0.0

    @property
    def on(self) -> bool:
        return self.mixup > 0 or self.cutmix > 0

    def __call__(self, key: tf.Tensor, own: Batch, other: Batch) -> Batch:
        """Mixes two batches of image, label and weight, example by example.

        Args:
            key: of the examples of `own`, uint64 [n].

        Returns:
            The batch `own` with mixed images, and in addition `other_label`, int32 [n], and `share`, float32 [n]: the
            part of `label` in the target, where `other_label` has the rest. An other example of weight 0 has no part.
        """
        image = own["image"]
        _, height, width, _ = image.shape
        by_cutmix = self._by_cutmix(key)
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
        mixed = of_pixel * image + (1.0 - of_pixel) * other["image"]
        return {**own, "image": mixed, "other_label": other["label"], "share": share}

    def _by_cutmix(self, key: tf.Tensor) -> tf.Tensor:
        """Whether CutMix is drawn for each example; every second time if both are on."""
        if self.mixup and self.cutmix:
            return random_below(2, key, _KIND) == 1
        return tf.fill(tf.shape(key), self.cutmix > 0)


def _rectangles(key: tf.Tensor, side: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Masks, bool [n, height, width], of rectangles around a random pixel; `side`, float32 [n], is relative.

    What is outside of the image is cut off (Yun et al. 2019, arXiv:1905.04899).
    """

    def along(size: int, draw: int) -> tf.Tensor:
        length = tf.cast(size * side, tf.int64)
        first = random_below(size, key, draw) - length // 2
        place = tf.range(size, dtype=tf.int64)[None]
        return (place >= first[:, None]) & (place < (first + length)[:, None])

    return along(height, _ROW)[:, :, None] & along(width, _COLUMN)[:, None, :]


@cache
def _beta_levels(alpha: float) -> np.ndarray:
    """Quantiles of Beta(alpha, alpha) at the middles of _LEVELS equal parts, float32, by bisection."""
    target = (np.arange(_LEVELS) + 0.5) / _LEVELS
    low, high = np.zeros(_LEVELS), np.ones(_LEVELS)
    alphas = np.full(_LEVELS, alpha)
    with tf.init_scope():
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            below = tf.math.betainc(alphas, alphas, middle).numpy() < target
            low, high = np.where(below, middle, low), np.where(below, high, middle)
    return ((low + high) / 2).astype(np.float32)
