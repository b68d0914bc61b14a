"""Every key of an optimizer changes an update, and every key of a schedule its factors."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.fields import OneOf, constraints_of
from accumtrain.optim.config import OPTIMIZERS, OptimConfig
from accumtrain.optim.schedules import SCHEDULES
from accumtrain.train.build import build_optimizer
from tests.contract.examples import example_of

UPDATES, TOTAL = 3, 12
SHAPES = [(4, 6), (3, 3, 2, 5)]  # the last two axes are not the largest two
ELSEWHERE = (
    "kind",
    "name",
    "args",
    "rates",
    "layer_decay",
    "clip_norm",
    "adaptive_clip",
)  # of the table, and of the window
OTHERS: dict[str, Any] = {  # whose half would change less than a rounding
    "epsilon": 0.1,
    "epsilon1": 0.1,
    "epsilon2": 2.0,
    "clip_threshold": 0.1,
    "min_dim_size_to_factor": 64,
    "boundaries": [2, 7],
    "half_life": 300.0,
    "half_life_first": 300.0,
}
NEEDED = {"unscaled_relative_step": {"scale_parameter": False}}  # to have an effect at all


def cases(table, without=()):
    keys = {entry.name: [each.name for each in fields(entry.config) if each.name not in without] for entry in table}
    return [pytest.param(name, key, id=f"{name}-{key}") for name, own in keys.items() for key in own]


def changed(config: Any, key: str) -> Any:
    """The configuration with another value of `key`."""
    value = getattr(config, key)
    rules = [rule for rule in constraints_of(type(config))[key] if isinstance(rule, OneOf)]
    if key in OTHERS:
        other = OTHERS[key]
    elif rules:
        other = next(choice for choice in rules[0].choices if choice != value)
    elif isinstance(value, bool):
        other = not value
    elif isinstance(value, int):
        other = value + 1
    else:
        other = 0.5 * value if value else 0.5
    return replace(config, **{key: other})


def weights(config: OptimConfig) -> np.ndarray:
    draw = np.random.default_rng(0)
    variables = [tf.Variable(draw.normal(size=shape), dtype=tf.float32, name="kernel") for shape in SHAPES]
    optimizer = build_optimizer(config)
    optimizer.build(variables, [True] * len(variables))
    optimizer.follow(0, 32)
    for step in range(UPDATES):
        gradients = [tf.constant(draw.normal(size=shape), tf.float32) for shape in SHAPES]
        at = tf.constant(step, tf.int64)
        optimizer.apply(gradients, optimizer.learning_rate(at), at)
    return np.concatenate([variable.numpy().ravel() for variable in variables])


def factors(config: Any) -> np.ndarray:
    schedule = config.build(TOTAL)
    return np.array([float(schedule(tf.constant(step, tf.int64))) for step in range(TOTAL)])


@pytest.mark.parametrize(("name", "key"), cases(OPTIMIZERS, ELSEWHERE))
def test_an_update_depends_on_it(name, key):
    config = replace(example_of("optim", name), **NEEDED.get(key, {}))
    assert (weights(config) != weights(changed(config, key))).any()


@pytest.mark.parametrize(("name", "key"), cases(SCHEDULES, ("kind",)))
def test_the_factors_depend_on_it(name, key):
    config = example_of("schedule", name)
    if config.rises and key == "warmup":
        pytest.skip("refused, as it has a rise of its own")
    assert (factors(config) != factors(changed(config, key))).any()
