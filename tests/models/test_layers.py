"""Layers whose gradients are written out, against TensorFlow's own."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.models.blocks import Residual
from accumtrain.models.layers import Conv, Initializer
from accumtrain.models.mode import Mode


@pytest.mark.parametrize(
    ("size", "stride", "padding"), [(3, 1, "SAME"), (3, 2, "SAME"), (1, 2, "SAME"), (5, 1, "VALID")]
)
def test_gradients_of_a_convolution(size, stride, padding):
    conv = Conv(Initializer(1), size, 6, 10, stride, padding)
    x = tf.random.stateless_normal([4, 9, 9, 6], [1, 2])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        ours = conv(x)
        plain = tf.nn.conv2d(x, conv.kernel, stride, padding)
    d_y = tf.random.stateless_normal(plain.shape, [3, 4])
    for source in (x, conv.kernel):
        actual, expected = (tape.gradient(y, source, d_y).numpy() for y in (ours, plain))
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_a_replayed_residual_gives_the_bits_and_the_gradient_of_the_recorded_one(norm, keep):
    residual = Residual(Initializer(1), norm, 16, 16, bottleneck=False, keep=keep)
    for number, variable in enumerate(residual.trainable_variables):
        variable.assign_add(0.1 * tf.random.stateless_normal(variable.shape, [number, 7]))
    x = tf.random.stateless_normal([4, 8, 8, 16], [1, 2])

    @tf.function(autograph=False)
    def both():
        mode = Mode(training=True, recording=True)
        results = []
        for _ in range(2):  # the recorded pass, then its replay
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = residual(x, mode)
            d_y = tf.random.stateless_normal(y.shape, [3, 4])
            results.append([y, *tape.gradient(y, [x, *residual.trainable_variables], d_y)])
            mode = mode.replay()
        return results

    for recorded, replayed in zip(*both(), strict=True):
        np.testing.assert_array_equal(recorded, replayed)


def test_a_replay_takes_the_statistics_from_the_recorded_pass():
    """With other statistics in their place the output is another: they are not computed again."""
    residual = Residual(Initializer(1), "batch", 8, 8, bottleneck=False)
    x = tf.random.stateless_normal([4, 8, 8, 8], [1, 2])
    mode = Mode(training=True, recording=True)
    expected = residual(x, mode)
    norm = residual.activations[0].norm
    mean, variance = mode.saved[norm]
    mode.saved[norm] = mean + 1.0, variance
    assert not np.allclose(residual(x, mode.replay()), expected)
