"""The gradient of batch norm in parts, against that of its definition."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.models.norm_gradient import Reread, norm_gradient

EPSILON = 1e-3


def normalised(x, gamma, beta):
    mean, variance = tf.reduce_mean(x, [0, 1, 2]), tf.math.reduce_variance(x, [0, 1, 2])
    return gamma * (x - mean) / tf.sqrt(variance + EPSILON) + beta


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("images", [1, 3, 19])
def test_it_is_the_gradient_of_the_definition(images, dynamic):
    """With fewer images than parts, too, and with a number that no part divides."""
    x, d_y = (tf.random.stateless_normal([images, 5, 4, 6], [1, seed], dtype=tf.float64) for seed in (2, 3))
    gamma, beta = (tf.random.stateless_normal([6], [1, seed], dtype=tf.float64) for seed in (4, 5))
    with tf.GradientTape() as tape:
        tape.watch((x, gamma, beta))
        y = normalised(x, gamma, beta)
    expected = tape.gradient(y, [x, gamma, beta], d_y)
    asked = []

    @tf.function(input_signature=2 * [tf.TensorSpec([None, 5, 4, 6], tf.float64)] if dynamic else None, autograph=False)
    def gradient(x, d_y):
        def read(when, images=slice(None)):
            asked.append(when)
            return x[images]

        mean, variance = tf.nn.moments(x, [0, 1, 2])
        return norm_gradient(Reread(read, low_peak=True), d_y, gamma, mean, variance, EPSILON)

    for actual, wanted in zip(gradient(x, d_y), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-10, atol=1e-12)
    assert all(asked)  # each reading waits for something, or it would be in memory from the start
