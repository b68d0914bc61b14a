"""The moving average of the weights against its definition, and the weights and averages changing places."""

from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.engine.ema import MovingAverage
from accumtrain.optim.running_mean import HalfLife


@pytest.mark.parametrize(("dtype", "rtol"), [(tf.float32, 1e-6), (tf.float64, 1e-14)])
@pytest.mark.parametrize("decay", [0.0, 0.5, 0.999, 0.99999999])
@pytest.mark.parametrize("step", [0, 4, 10**6, 10**12])
def test_an_update_keeps_the_share_of_its_number(decay, step, dtype, rtol):
    weights = [tf.Variable([1.0, -2.0], dtype=dtype), tf.Variable([[3.0]], dtype=dtype)]
    average = MovingAverage(weights, decay)
    for each in average.averages:
        each.assign(tf.zeros_like(each))  # so that the share shows in all of its digits
        assert not each.trainable
    tf.function(average.update, autograph=False)(tf.constant(step, tf.int64))
    t = step + 1
    share = float(max(1 - Fraction(decay), 1 - Fraction(1 + t, 10 + t)))
    for each, weight in zip(average.averages, weights, strict=True):
        np.testing.assert_allclose(each, share * weight.numpy(), rtol=rtol)
    kept = [each.numpy().astype(np.float64) for each in average.averages]
    for weight in weights:
        weight.assign(10.0 * weight + 1.0)
    tf.function(average.update, autograph=False)(tf.constant(step, tf.int64))
    for each, old, weight in zip(average.averages, kept, weights, strict=True):
        np.testing.assert_allclose(each, (1.0 - share) * old + share * weight.numpy(), rtol=rtol)


def test_with_a_half_life_it_forgets_by_examples():
    weight = tf.Variable(1.0, dtype=tf.float64)
    average = MovingAverage([weight], HalfLife(300.0))
    expected = 1.0
    for step, batch in enumerate([64, 64, 256], start=10**6):  # where the number of the update has no part in it
        weight.assign_add(1.0)
        average.follow(batch)
        average.update(tf.constant(step, tf.int64))
        kept = 0.5 ** (batch / 300)
        expected = kept * expected + (1 - kept) * weight.numpy()
    assert average.averages[0].numpy() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("decay", [1.0, 1.5, -0.1, float("nan")])
def test_a_decay_out_of_its_range_is_refused(decay):
    with pytest.raises(ValueError, match=f"decay={decay}: must be at least 0 and below 1"):
        MovingAverage([tf.Variable(1.0)], decay)


def test_it_begins_with_the_weights_and_changes_places_with_them():
    weights = [tf.Variable([1.0, -2.0]), tf.Variable([[3.0]])]
    average = MovingAverage(weights, 0.9)
    for each, weight in zip(average.averages, weights, strict=True):
        np.testing.assert_array_equal(each, weight)
        weight.assign(weight + 0.1)

    def values(variables):
        return [each.numpy().tolist() for each in variables]

    own, averages = values(weights), values(average.averages)
    assert own != averages
    with average.in_place():
        assert (values(weights), values(average.averages)) == (averages, own)
    assert (values(weights), values(average.averages)) == (own, averages)
