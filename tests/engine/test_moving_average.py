"""The moving average of the weights against its definition, and the weights and averages changing places."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.engine.ema import MovingAverage


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.999])
@pytest.mark.parametrize("step", [0, 4, 10**6])
def test_an_update_keeps_the_share_of_its_number(decay, step):
    weights = [tf.Variable([1.0, -2.0], dtype=tf.float64), tf.Variable([[3.0]], dtype=tf.float64)]
    average = MovingAverage(weights, decay)
    for weight in weights:
        weight.assign(10.0 * weight + 1.0)
    before = [each.numpy() for each in average.averages]
    tf.function(average.update, autograph=False)(tf.constant(step, tf.int64))
    t = step + 1
    kept = np.minimum(np.float32(decay), np.float32(1 + t) / np.float32(10 + t))  # in the order of float32's bits
    share = float(np.float32(1.0) - kept)
    for each, old, weight in zip(average.averages, before, weights, strict=True):
        np.testing.assert_allclose(each, (1.0 - share) * old + share * weight.numpy(), rtol=1e-14)
        assert not each.trainable


def test_it_begins_with_the_weights_and_changes_places_with_them():
    weights = [tf.Variable([1.0, -2.0]), tf.Variable([[3.0]])]
    average = MovingAverage(weights, 0.9)
    for each, weight in zip(average.averages, weights, strict=True):
        np.testing.assert_array_equal(each, weight)
        weight.assign(weight + 0.1)
    own, averages = [each.numpy() for each in weights], [each.numpy() for each in average.averages]
    with average.in_place():
        for weight, each, old, mean in zip(weights, average.averages, own, averages, strict=True):
            np.testing.assert_array_equal(weight, mean)
            np.testing.assert_array_equal(each, old)
    for weight, each, old, mean in zip(weights, average.averages, own, averages, strict=True):
        np.testing.assert_array_equal(weight, old)
        np.testing.assert_array_equal(each, mean)
