"""Crops of images with a class for each pixel, at random, and the symmetries that both are seen in.

Each is a pure function of its arguments and the key of the example (see stream.py).
"""

from __future__ import annotations

import tensorflow as tf

from accumtrain.data.stream import random_below
from accumtrain.fields import NONE

# the number of each draw from one key; augment.py and randaugment.py have those below
_ROW, _COLUMN, _CLASS, _PIXEL, _SYMMETRY = range(1024, 1029)
FLIP, DIHEDRAL = "flip", "dihedral"  # values of data.augment
SYMMETRIES = {FLIP: 2, DIHEDRAL: 8}  # their number


def draw_symmetry(images: list[tf.Tensor], key: tf.Tensor, augment: str) -> list[tf.Tensor]:
    """Mirror images [height, width, channels] from left to right, each with probability 1/2, and all alike.

    Args:
        key: uint64 [].
        augment: FLIP; or DIHEDRAL, by which they are turned by a multiple of 90 degrees, too. They are square then.
    """
    number = random_below(SYMMETRIES[augment], key, _SYMMETRY)

    def apply(image: tf.Tensor) -> tf.Tensor:
        mirrored = tf.cond(number % 2 == 1, lambda: tf.reverse(image, axis=[1]), lambda: image)
        if augment == FLIP:
            return mirrored
        return tf.ensure_shape(tf.image.rot90(mirrored, tf.cast(number // 2, tf.int32)), image.shape)

    return [apply(image) for image in images]


def draw_window(shape: tf.Tensor, crop: tuple[int, int], key: tf.Tensor) -> tf.Tensor:
    """Return top and left, int32 [2], of a crop of an image [height, width, ...], which may be smaller."""
    free = [tf.maximum(shape[axis] - side, 0) for axis, side in enumerate(crop)]
    draws = [
        random_below(tf.cast(each + 1, tf.int64), key, draw) for each, draw in zip(free, (_ROW, _COLUMN), strict=True)
    ]
    return tf.cast(tf.stack(draws), tf.int32)


def draw_balanced_window(mask: tf.Tensor, crop: tuple[int, int], key: tf.Tensor) -> tf.Tensor:
    """Return top and left, int32 [2], of a crop that holds a pixel of a class drawn from those of a mask.

    Each class of the mask is as probable as the others, and so is each of its pixels.

    Args:
        mask: int32 [height, width], NONE where there is no class. Without any the crop is drawn as by `draw_window`.
    """
    shape = tf.shape(mask)

    def around_pixel() -> tf.Tensor:
        classes, _ = tf.unique(tf.boolean_mask(mask, mask != NONE))
        chosen = classes[random_below(tf.size(classes, tf.int64), key, _CLASS)]
        pixels = tf.where(mask == chosen)
        pixel = tf.cast(pixels[random_below(tf.shape(pixels, tf.int64)[0], key, _PIXEL)], tf.int32)
        before = tf.stack([random_below(side, key, draw) for side, draw in zip(crop, (_ROW, _COLUMN), strict=True)])
        return tf.clip_by_value(pixel - tf.cast(before, tf.int32), 0, tf.maximum(shape - tf.constant(crop), 0))

    return tf.cond(tf.reduce_any(mask != NONE), around_pixel, lambda: draw_window(shape, crop, key))


def cut(image: tf.Tensor, corner: tf.Tensor, crop: tuple[int, int], fill: tf.Tensor) -> tf.Tensor:
    """Return a crop [*crop, ...] of an image [height, width, ...], filled up below and to the right if it is smaller.

    Args:
        corner: top and left, int32 [2].
        fill: of the dtype of the image; one value, or one for each channel.
    """
    height, width = crop
    part = image[corner[0] : corner[0] + height, corner[1] : corner[1] + width]
    missing = tf.constant(crop) - tf.shape(part)[:2]
    below = tf.pad(missing, [[0, image.shape.rank - 2]])  # channels are not padded
    paddings = tf.stack([tf.zeros_like(below), below], 1)
    inside = tf.pad(tf.ones_like(part, tf.bool), paddings)
    return tf.ensure_shape(tf.where(inside, tf.pad(part, paddings), fill), [*crop, *image.shape[2:]])
