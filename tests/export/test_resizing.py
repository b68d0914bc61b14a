"""Resizing by matrices equals that of an evaluation."""

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.data.images.resize import resize
from accumtrain.data.inputs.pixels import Pixels

SIZES = [(9, 10), (9, 23), (31, 10), (4, 3), (100, 64), (1, 1), (9, 11)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("augment", ["none", "inception"])
@pytest.mark.parametrize("channels", [1, 3])
def test_as_in_an_evaluation(size, augment, channels):
    image = np.random.default_rng(0).integers(0, 256, [*size, channels], np.uint8)
    prepare = Pixels((9, 10, channels), augment, (9, 10), [0.0], [1.0], 255)
    expected = prepare.example(tf.constant(image), tf.zeros([], tf.uint64), training=False)
    found = resize(tf.constant(image[None], tf.float32), 9, 10, central=augment == "inception")[0] / 255
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_pixels_of_the_final_size_are_kept():
    image = np.random.default_rng(0).integers(0, 256, [2, 9, 10, 3]).astype(np.float32)
    assert np.array_equal(resize(tf.constant(image), 9, 10, central=False), image)
