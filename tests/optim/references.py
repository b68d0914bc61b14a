"""Several updates by optimizers, and by the rules of job=verify in float64 NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.measure.verify import references
from accumtrain.optim.config import OptimConfig
from accumtrain.optim.optimizer import Optimizer


def by_rule(
    config: OptimConfig, weight: np.ndarray, gradients: Sequence[np.ndarray], rates: Sequence[float]
) -> np.ndarray:
    """The weight after an update for each gradient. Decay is for rank >= 2."""
    make = references.rule_of(config)
    if make is None:
        pytest.fail(f"optim={config.kind} has no rule: write it in NumPy, for RULES in {references.__file__}")
    rule, decay = make(), config.weight_decay if weight.ndim >= 2 else 0.0
    for gradient, rate in zip(gradients, rates, strict=True):
        weight = rule(weight, gradient, rate, decay)
    return weight


def all_by_rule(
    config: OptimConfig,
    weights: Sequence[np.ndarray],
    gradients: Sequence[Sequence[np.ndarray]],
    rates: Sequence[float],
) -> list[np.ndarray]:
    series = zip(*gradients, strict=True)
    return [by_rule(config, weight, own, rates) for weight, own in zip(weights, series, strict=True)]


def state_size(optimizer: Optimizer) -> int:
    return sum(int(np.prod(slot.shape)) for slot in optimizer.state)


def train(
    optimizer: Optimizer,
    weights: Sequence[np.ndarray],
    gradients: Sequence[Sequence[np.ndarray]],
    dtype: tf.DType = tf.float32,
    schedule: Callable[[tf.Tensor], tf.Tensor] = lambda step: 1.0 / tf.cast(1 + step // 20, tf.float64),
    first_step: int = 0,
    jit_compile: bool | None = None,
) -> list[np.ndarray]:
    """Make an update for each gradient. Return the weights after the last."""
    variables = [tf.Variable(weight, dtype=dtype, name=f"part{i}/w") for i, weight in enumerate(weights)]
    optimizer.build(variables, [weight.ndim >= 2 for weight in weights])

    @tf.function(autograph=False, jit_compile=jit_compile)
    def update(step: tf.Tensor, *gradients: tf.Tensor) -> None:
        optimizer.apply(gradients, optimizer.learning_rate(step) * tf.cast(schedule(step), optimizer.dtype), step)

    for step, values in enumerate(gradients, first_step):
        update(tf.constant(step, tf.int64), *[tf.constant(value, dtype) for value in values])
    return [variable.numpy() for variable in variables]


def assert_same_path(
    actual: list[np.ndarray], expected: list[np.ndarray], start: list[np.ndarray], rtol: float
) -> None:
    """Per variable: the error is within `rtol` of the way travelled, beside the roundings of the weight itself."""
    for got, want, origin in zip(actual, expected, start, strict=True):
        assert got.shape == want.shape
        way = np.linalg.norm(want - origin)
        roundings = 50 * np.finfo(got.dtype).eps / 2 * np.linalg.norm(want)  # of at most as many updates
        assert np.linalg.norm(got - want) <= rtol * way + roundings, got.shape
