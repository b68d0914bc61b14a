"""The moving statistics of a window against those of all its values at once, in float64 NumPy."""

import numpy as np
import tensorflow as tf

from accumtrain.engine.norm_statistics import NormStatistics
from accumtrain.engine.sums import sum_buffer

CHANNELS, MOMENTA = (3, 2), (0.9, 0.5)
WINDOWS = 3


class KnownNorm:
    """The part of a batch normalisation that the buffer needs."""

    def __init__(self, channels, momentum, dtype=tf.float64):
        self.channels, self.momentum = channels, momentum
        self.moving_mean = tf.Variable(np.linspace(1.0, 2.0, channels), dtype=dtype)
        self.moving_variance = tf.Variable(np.linspace(0.5, 3.0, channels), dtype=dtype)


def new_sum(shape):
    return sum_buffer(shape, tf.float64)


def window_of_values(seed, channels):
    """Micro-batches of 2, 5 and 1 examples, each of 4 values per channel and with a mean of its own."""
    draw = np.random.default_rng([seed, channels])
    return [draw.normal(3 * draw.normal(), 1 + place, [count, 4, channels]) for place, count in enumerate((2, 5, 1))]


def test_they_are_those_of_all_values_of_the_window():
    norms = [KnownNorm(*pair) for pair in zip(CHANNELS, MOMENTA, strict=True)]
    buffer = NormStatistics(norms, new_sum)
    expected = [(norm.moving_mean.numpy(), norm.moving_variance.numpy()) for norm in norms]
    for window in range(WINDOWS):
        parts = [window_of_values(window, channels) for channels in CHANNELS]
        for micro_batch in zip(*parts, strict=True):
            statistics = {
                norm: (tf.constant(values.mean((0, 1))), tf.constant(values.var((0, 1))))
                for norm, values in zip(norms, micro_batch, strict=True)
            }
            buffer.add(statistics, tf.constant(float(len(micro_batch[0])), tf.float64))
        examples = tf.constant(float(sum(map(len, parts[0]))), tf.float64)
        buffer.write([tf.convert_to_tensor(each) for each in buffer.buffers], examples)
        for each in buffer.buffers:
            each.assign(tf.zeros_like(each))
        whole = [np.concatenate(values) for values in parts]
        expected = [
            (
                momentum * mean + (1 - momentum) * values.mean((0, 1)),
                momentum * variance + (1 - momentum) * values.var((0, 1)),
            )
            for momentum, (mean, variance), values in zip(MOMENTA, expected, whole, strict=True)
        ]
    for norm, (mean, variance) in zip(norms, expected, strict=True):
        np.testing.assert_allclose(norm.moving_mean, mean, rtol=1e-12)
        np.testing.assert_allclose(norm.moving_variance, variance, rtol=1e-12)
    assert [variable.shape for variable in buffer.variables_] == [(3,), (3,), (2,), (2,)]


def test_a_mean_far_from_zero_loses_no_bits_of_the_variance():
    """In float32 the sum of squares of values near 1000 has none left of a variance of 1e-4."""
    norm = KnownNorm(3, 0.0, tf.float32)
    norm.moving_mean.assign([1000.0] * 3)
    norm.moving_variance.assign([1e-4] * 3)
    buffer = NormStatistics([norm], lambda shape: sum_buffer(shape, tf.float32))
    for offset in (-0.0078125, 0.0078125):
        buffer.add({norm: (tf.fill([3], 1000.0 + offset), tf.fill([3], 1e-4))}, tf.constant(4.0))
    buffer.write([tf.convert_to_tensor(each) for each in buffer.buffers], tf.constant(8.0))
    np.testing.assert_array_equal(norm.moving_mean, [1000.0] * 3)
    np.testing.assert_allclose(norm.moving_variance, [1e-4 + 0.0078125**2] * 3, rtol=1e-5)


def test_without_normalisation_there_is_nothing():
    buffer = NormStatistics([], new_sum)
    buffer.add({}, tf.constant(1.0))
    buffer.write([], tf.constant(1.0))
    assert buffer.buffers == buffer.variables_ == []
