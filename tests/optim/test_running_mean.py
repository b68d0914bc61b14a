"""Means with a half-life in examples, over batches that change, against sums over all updates in float64."""

import math

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.errors import ConfigError
from accumtrain.keras import beta_2
from accumtrain.optim.adafactor import Adafactor
from accumtrain.optim.adam import Adam, AdamW
from accumtrain.optim.running_mean import HalfLife, RunningMean
from accumtrain.train.build import build_optimizer

STAGES = [(0, 4), (3, 16), (8, 64)]
UPDATES = 12
GRADIENTS = np.random.default_rng(0).normal(size=[UPDATES, 3, 4]).astype(np.float32).astype(np.float64)


def batch_of(update: int, stages=STAGES) -> int:
    """Return the batch of an update, which counts from 0."""
    return [batch for first, batch in stages if first <= update][-1]


def train(optimizer, stages=STAGES, dtype=tf.float64) -> np.ndarray:
    """Make all updates at the rate 0.1; the optimizer learns of each stage before its first update."""
    weight = tf.Variable(np.ones([3, 4]), dtype=dtype)
    optimizer.build([weight], [True])
    for update, gradient in enumerate(GRADIENTS):
        optimizer.follow(update, batch_of(update, stages))
        optimizer.apply([tf.constant(gradient, dtype)], tf.constant(0.1, dtype), tf.constant(update, tf.int64))
    return weight.numpy()


def mean_until(values: np.ndarray, update: int, half_life: float) -> np.ndarray:
    """Return the mean of all values until an update, each weighted by what later updates keep of it."""
    shares = [0.5 ** (batch_of(each) / half_life) for each in range(update + 1)]
    weights = [(1 - share) * math.prod(shares[each + 1 :]) for each, share in enumerate(shares)]
    return np.average(values[: update + 1], axis=0, weights=weights)


def test_adam_forgets_by_examples_while_the_batch_grows():
    weight = np.ones([3, 4])
    for update in range(UPDATES):
        first, second = mean_until(GRADIENTS, update, 10), mean_until(GRADIENTS**2, update, 300)
        weight = weight - 0.1 * first / (np.sqrt(second) + 1e-8)
    found = train(Adam(beta1=HalfLife(10), beta2=HalfLife(300)))
    np.testing.assert_allclose(found, weight, rtol=1e-12)


def test_adafactor_forgets_by_examples_while_the_batch_grows():
    weight = np.ones([3, 4])
    for update in range(UPDATES):
        square = mean_until(GRADIENTS**2, update, 300)
        factored = square.mean(1, keepdims=True) * square.mean(0, keepdims=True) / square.mean()
        weight = weight - 0.1 * GRADIENTS[update] / np.sqrt(factored)
    found = train(Adafactor(0.1, beta2=HalfLife(300), clip_threshold=None, scale_parameter=False))
    np.testing.assert_allclose(found, weight, rtol=1e-12)


@pytest.mark.parametrize("kind", [Adam, AdamW, lambda beta2: Adafactor(0.1, beta2=beta2)])
def test_of_one_batch_a_half_life_is_a_plain_share_to_the_bit(kind):
    of_half_life, plain = train(kind(beta2=HalfLife(300)), [(0, 16)], tf.float32), kind(beta2=2.0 ** (-16 / 300))
    np.testing.assert_array_equal(of_half_life, train(plain, [(0, 4)], tf.float32))


def test_told_answers_count_in_the_place_of_examples():
    assert HalfLife(300, told=5.0).share(4) == HalfLife(300).share(20) == 2 ** (-20 / 300)


def test_a_half_life_that_keeps_nearly_nothing_is_refused_with_one_that_does_not():
    with pytest.raises(ConfigError, match=r"^optim.half_life=1: a batch of 64 keeps 5.4e-20 of the mean") as error:
        HalfLife(1.0, key="optim.half_life").share(64)
    least = float(str(error.value).partition("; use optim.half_life=")[2].split()[0])
    assert HalfLife(least).share(64) > 1e-3


def test_stages_go_on_from_those_that_were_made():
    """So a run that began with another share or half-life corrects what was made by it."""
    mean = RunningMean(HalfLife(100.0))
    mean.shares = [(0, 0.9), (10, 0.5)]
    assert mean.follow(20, 100) is False, "an update of 100 keeps a half, as before"
    assert mean.follow(20, 200) is True
    assert mean.shares == [(0, 0.9), (10, 0.5), (20, 0.25)]
    product = tf.math.exp(mean.log_product(tf.constant(23.0, tf.float64)))
    assert float(product) == pytest.approx(0.9**10 * 0.5**10 * 0.25**3, rel=1e-12)
    assert mean.follow(5, 100) is True, "a rollback to the first stage"
    assert mean.shares == [(0, 0.9), (5, 0.5)]


def test_a_half_life_that_keeps_all_is_refused_with_one_that_does_not():
    with pytest.raises(ConfigError, match=r"^optim.half_life=1e\+12: a batch of 2 keeps 1 - 1.4e-12 of the") as error:
        HalfLife(1e12, key="optim.half_life").share(2)
    most = float(str(error.value).partition("; use optim.half_life=")[2].split()[0])
    assert HalfLife(most).share(2) < 1
    assert np.float32(HalfLife(most).share(2)) < 1


def test_a_half_life_without_a_batch_is_refused():
    with pytest.raises(ValueError, match="call `follow` of the optimizer with the batch"):
        _ = RunningMean(HalfLife(300)).share


def test_beta_2_of_another_batch():
    assert beta_2(512, half_life=512 * math.log(0.5) / math.log(0.95)) == pytest.approx(0.95, rel=1e-15)
    assert beta_2(1, half_life=512 * math.log(0.5) / math.log(0.95)) == pytest.approx(0.95 ** (1 / 512), rel=1e-15)
    for batch_size, half_life in (
        (0, 10),
        (1, 0),
        (1, math.nan),
        (1, 1e12),
        (math.inf, 10),
        ("4", 5),
        (True, 5),
        (10**400, 5),
        (4, 1e-9),
    ):
        with pytest.raises(ValueError, match=r"must be a number above 0|float32 makes 1 of it|begins it anew"):
            beta_2(batch_size, half_life=half_life)


@pytest.mark.parametrize(("kind", "key", "mean"), [("adam", "half_life", "beta2"), ("adafactor", "half_life", "beta2")])
def test_a_half_life_beside_a_share_is_refused(configs, kind, key, mean):
    config = type(configs[kind])(**{key: 100.0, mean: 0.5})
    with pytest.raises(ConfigError, match=rf"optim.{key}=100 and optim.{mean}=0.5: both say"):
        config.check()


def test_keys_reach_the_optimizer(configs):
    config = type(configs["adam"])(half_life=300.0, half_life_first=10.0)
    optimizer = build_optimizer(config, told=2.0)
    optimizer.follow(0, 8)
    assert [mean.share for mean in optimizer.means] == [2 ** (-16 / 10), 2 ** (-16 / 300)]
