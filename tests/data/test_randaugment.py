"""RandAugment's operations against those of Pillow, and what is drawn."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from accumtrain.data.images import randaugment as module
from accumtrain.data.images.randaugment import randaugment

FILL = np.full([3], 128 / 255, np.float32)
PICTURE = Image.fromarray(np.random.default_rng(0).integers(20, 200, [24, 20, 3], np.uint8).repeat(2, 0).repeat(2, 1))
IMAGE = tf.constant(np.asarray(PICTURE) / np.float32(255))
ROTATION, SHEAR, _, SHIFT, _, BRIGHTNESS, CONTRAST, COLOUR, SHARPNESS, POSTERIZE, SOLARIZE, STRETCH, EQUALIZE, SAME = (
    range(14)
)


def applied(number: int, strength: float, image: tf.Tensor = IMAGE) -> np.ndarray:
    """Levels 0..255 after an operation."""
    fill = np.resize(FILL, image.shape[-1])
    changed = module._operations(fill)[number](image, tf.constant(strength, tf.float32))
    return np.round(np.clip(changed, 0, 1) * 255)


@pytest.mark.parametrize(
    ("number", "strength", "expected"),
    [
        (BRIGHTNESS, -0.5, lambda image: ImageEnhance.Brightness(image).enhance(0.55)),
        (CONTRAST, 0.5, lambda image: ImageEnhance.Contrast(image).enhance(1.45)),
        (COLOUR, 0.5, lambda image: ImageEnhance.Color(image).enhance(1.45)),
        (SHARPNESS, 0.5, lambda image: ImageEnhance.Sharpness(image).enhance(1.45)),
        (POSTERIZE, 1.0, lambda image: ImageOps.posterize(image, 4)),
        (SOLARIZE, -0.5, lambda image: ImageOps.solarize(image, 128)),
        (STRETCH, 1.0, ImageOps.autocontrast),
        (EQUALIZE, 1.0, ImageOps.equalize),
        (SAME, 1.0, lambda image: image),
    ],
)
def test_a_colour_operation_is_that_of_pillow(number, strength, expected):
    assert np.abs(applied(number, strength) - np.asarray(expected(PICTURE), float)).max() <= 1


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (ROTATION, lambda image: image.rotate(30, Image.Resampling.BILINEAR)),
        (SHEAR, lambda image: image.transform(image.size, Image.Transform.AFFINE, (1, 0.3, -7.2, 0, 1, 0), 2)),
        (SHIFT, lambda image: image.transform(image.size, Image.Transform.AFFINE, (1, 0, 6000 / 331, 0, 1, 0), 2)),
    ],
)
def test_a_movement_is_that_of_pillow(number, expected):
    inner = np.s_[14:34, 12:20]  # what comes from outside is filled otherwise
    assert np.abs(applied(number, 1.0) - np.asarray(expected(PICTURE), float))[inner].max() <= 2


def test_what_comes_from_outside_has_the_fill_colour():
    np.testing.assert_array_equal(applied(SHIFT, 1.0)[:, -10:], 128)


@pytest.mark.parametrize("shape", [(1, 1, 3), (2, 2, 1), (3, 5, 1)])
def test_small_and_grey_images_keep_their_shape(shape):
    for number in range(14):
        changed = applied(number, 0.9, tf.fill(shape, 0.5))
        assert changed.shape == shape
        assert np.isfinite(changed).all()


def test_each_key_draws_its_own_operations():
    draw = tf.function(lambda key: randaugment(IMAGE, key, 1, 0.9, FILL), autograph=False)
    drawn = {draw(tf.constant(key, tf.uint64)).numpy().tobytes() for key in range(300)}
    signs = 9  # operations whose result depends on the sign; those of five do not
    assert len(drawn) == 2 * signs + 5
