"""Every loss gives each example its own value; every schedule is a factor that each update knows from its number."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.fields import CLASSES, MASKS, TOKENS
from accumtrain.optim.schedules import SCHEDULES
from accumtrain.registry import load
from accumtrain.tasks.config import LOSSES
from tests.contract.examples import example_of

TOTAL, WARMUP = 12, 3  # updates; no example changes its rate before
LOGITS = np.random.default_rng(0).normal(size=(6, 4)) * 10.0 ** np.arange(-3, 3)[:, None]
LABELS = np.array([0, 3, 1, 1, 2, 0])
MANY = np.where(np.random.default_rng(1).random([6, 4]) < 0.2, np.nan, np.random.default_rng(2).integers(0, 2, [6, 4]))
PLACES = np.array([[0, 3], [1, -1], [2, 1], [0, 0], [3, -1], [-1, -1]])  # -1: no token is to be told there
of_every_loss = pytest.mark.parametrize("name", LOSSES.names)
of_every_schedule = pytest.mark.parametrize("name", SCHEDULES.names)


def loss_of(name: str):
    return load(LOSSES[name].build)(example_of("loss", name))


def is_of_positions(name: str) -> bool:
    return bool({TOKENS, MASKS} & {*LOSSES[name].targets})


def targets_of(name: str, dtype: tf.DType = tf.int32) -> tf.Tensor:
    """Of the form that the loss takes: classes of an integer dtype, or tokens, labels or numbers, some unknown."""
    if is_of_positions(name):
        return tf.constant(PLACES, tf.int32)
    return tf.constant(LABELS, dtype) if CLASSES in LOSSES[name].targets else tf.constant(MANY, tf.float32)


def logits_of(name: str, dtype: tf.DType = tf.float64) -> tf.Tensor:
    """For each example, or for each place in it."""
    logits = tf.constant(LOGITS, dtype)
    return tf.stack([logits, -logits], axis=1) if is_of_positions(name) else logits


def factors(name: str, warmup: int) -> np.ndarray:
    """Of each update of a run and some beyond, in one graph."""
    schedule = replace(example_of("schedule", name), warmup=warmup).build(TOTAL)
    graph = tf.function(schedule, autograph=False, input_signature=[tf.TensorSpec([], tf.int64)])
    values = [graph(tf.constant(step, tf.int64)) for step in range(2 * TOTAL)]
    assert {(value.dtype, value.shape.rank) for value in values} == {(tf.float32, 0)}
    return np.array(values)


@of_every_loss
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("labels", [tf.int32, tf.int64, tf.uint8])
def test_a_loss_is_of_each_example_alone(name, dtype, labels):
    loss, logits, truth = loss_of(name), logits_of(name, dtype), targets_of(name, labels)
    together = loss(truth, logits)
    assert (together.dtype, together.shape) == (dtype, (6,))
    assert np.isfinite(together).all()
    alone = [loss(truth[place : place + 1], logits[place : place + 1])[0] for place in range(6)]
    np.testing.assert_allclose(together, alone, rtol=1e-6)


@of_every_loss
def test_a_loss_has_a_finite_gradient(name):
    logits = logits_of(name)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        total = tf.reduce_sum(loss_of(name)(targets_of(name), logits))
    gradient = tape.gradient(total, logits).numpy()
    assert np.isfinite(gradient).all()
    assert gradient.any()


@of_every_schedule
def test_a_schedule_is_finite_and_above_nothing_until_the_end(name):
    values = factors(name, warmup=0)
    assert np.isfinite(values).all()
    assert (values[: TOTAL - 1] > 0).all()
    assert 0.0 <= values.min() <= values.max() <= 1.0
    assert values[0] == 1.0 or SCHEDULES[name].config.rises


@pytest.mark.parametrize("name", [entry.name for entry in SCHEDULES if not entry.config.rises])
def test_a_warmup_rises_to_the_whole_rate(name):
    np.testing.assert_allclose(factors(name, warmup=WARMUP)[:WARMUP], (np.arange(WARMUP) + 1) / WARMUP, rtol=1e-6)
