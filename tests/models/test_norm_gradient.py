"""The gradient of batch norm in parts, against that of its definition, and the bits of a replay in a compiled graph."""

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.tracing import after
from accumtrain.engine.compiled_function import FUSION_ONLY, CompiledFunction
from accumtrain.models.layers import Initializer
from accumtrain.models.norms import BatchNorm, Reread, norm_gradient
from accumtrain.models.resnet.blocks import Residual

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


@pytest.mark.parametrize("low_peak", [None, False, True], ids=["kept", "read again", "in parts"])
@pytest.mark.parametrize("factor", [1.0, 2.0**7])
@pytest.mark.parametrize(("dtype", "rtol"), [(tf.float32, 2e-5), (tf.float64, 1e-10)], ids=["float32", "float64"])
def test_the_pullback_of_values_times_a_factor_is_that_of_the_values(dtype, rtol, factor, low_peak):
    """The variance is about as large as the epsilon, which has to be multiplied too."""
    norm, draw = BatchNorm(Initializer(1, dtype), 3), np.random.default_rng(0)
    gamma, beta = draw.normal(size=(2, 3))
    norm.gamma.assign(gamma)
    norm.beta.assign(beta)
    x, d_y = 0.03 * draw.normal(size=(4, 5, 4, 3)), draw.normal(size=(4, 5, 4, 3))
    inverse = 1 / np.sqrt(x.var((0, 1, 2)) + EPSILON)
    normal = (x - x.mean((0, 1, 2))) * inverse
    by_mean = d_y.mean((0, 1, 2)) + normal * (d_y * normal).mean((0, 1, 2))
    expected = (
        gamma * normal + beta,
        gamma * inverse * (d_y - by_mean),
        (d_y * normal).sum((0, 1, 2)),
        d_y.sum((0, 1, 2)),
    )

    given = tf.constant(factor * x, dtype)
    reread = None if low_peak is None else Reread(lambda when, images=slice(None): given[images], low_peak)
    y, backward = norm.pullback(given, Mode(training=True, recording=True), factor, reread)
    d_x, of_variables = backward(tf.constant(d_y, dtype))
    gradients = {variable.ref(): gradient for variable, gradient in of_variables}
    results = y, d_x, gradients[norm.gamma.ref()], gradients[norm.beta.ref()]
    for found, wanted in zip(results, expected, strict=True):
        assert found.dtype == dtype
        np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol * np.abs(wanted).max())


@pytest.mark.parametrize("channels", [1, 2, 4, 6, 8, 12, 16, 20, 24])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_a_replay_has_the_same_bits_whatever_the_number_of_channels(channels, dtype):
    """oneDNN fuses normalisation and ReLU, in kernels that are not the same in both passes."""
    residual = Residual(Initializer(0), "batch", channels, channels, bottleneck=False)
    for number, variable in enumerate(residual.trainable_variables):  # a scale of 1 would hide another rounding
        variable.assign_add(0.3 * tf.random.stateless_normal(variable.shape, [1, number]))

    def both(x):
        mode = Mode(training=True, recording=True)
        y, _ = residual.pullback(x, mode)
        again, backward = residual.pullback(after([y], x), mode.replay())
        d_x, gradients = backward(y)  # which keeps the convolutions from being fused, too
        return y, again, d_x, [gradient for _, gradient in gradients]

    x = tf.cast(2.0 * tf.random.stateless_normal([8, 8, 8, channels], [3, 4]) + 0.5, dtype)
    recorded, replayed, *_ = CompiledFunction(both, FUSION_ONLY)(x)
    np.testing.assert_array_equal(tf.cast(recorded, tf.float32), tf.cast(replayed, tf.float32))
