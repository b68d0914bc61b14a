"""Checks the optimizer: its updates in float32 against its rule in float64 NumPy, written apart (update_rules.py).

An optimizer without such a rule, one of the user's own, is compared with itself in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from accumtrain.engine.checks.result import Result, ratio, worst
from accumtrain.engine.checks.update_rules import Rule, rule_of
from accumtrain.optim.config import OptimConfig
from accumtrain.optim.optimizer import Optimizer

UPDATES = 5
ARITHMETIC_BOUND = 1e-5  # of the distance travelled
HALF_ULP = 2.0**-24
JUMP = 1e-3  # a nudge of the gradients that moves a value by more than this share of the largest change is a jump
MOST_JUMPS = 1e-4  # largest share of the values that may jump
NUDGES = 10  # each finds half of the jumps


def check_optimizer(
    build: Callable[[], Optimizer],
    names: Sequence[str],
    weights: Sequence[np.ndarray],
    gradients: Sequence[np.ndarray],
    decayed: Sequence[bool],
    config: OptimConfig,
) -> Result:
    """Updates each variable by itself, in both ways, from the same weights and gradients. Returns the worst.

    The bound allows for the rounding of each new weight to float32, which no arithmetic avoids. A few values may be
    left out, where the rule is discontinuous: where, in float64 too, a change of the gradients in their last bits
    changes the result much more, such as the sign of a sum near 0.

    Args:
        build: makes a new optimizer of the run's configuration.
        gradients: the mean gradient of a window; each update adds noise of the same size to it.
    """
    results = [
        _check_one(build, config, name, start.astype(np.float32), _noisy(gradient.astype(np.float32), place), decay)
        for place, (name, start, gradient, decay) in enumerate(zip(names, weights, gradients, decayed, strict=True))
    ]
    return worst(results, lambda result: result[0])[1]


def _check_one(
    build: Callable[[], Optimizer],
    config: OptimConfig,
    name: str,
    start: np.ndarray,
    gradients: Sequence[np.ndarray],
    decay: bool,
) -> tuple[float, Result]:
    """Returns measured / bound, and the result, of one variable."""

    def exact(gradients: Sequence[np.ndarray]) -> np.ndarray:
        wide = start.astype(np.float64)
        rule = rule_of(config)
        if rule is None:
            return _update(build(), name, wide, gradients, decay)
        return _by_rule(rule(), build(), wide, gradients, config.weight_decay if decay else 0.0)

    single, double = _update(build(), name, start, gradients, decay), exact(gradients)
    measured, bound = compare(single, double, start)
    note = f"nearest to its bound: {name} {list(start.shape)}"
    if measured > bound:
        moved = np.max([np.abs(exact(nudged) - double) for nudged in _nudge(gradients)], axis=0)
        steady = moved <= JUMP * np.max(np.abs(double - start))
        jumps = steady.size - int(np.sum(steady))
        if 0 < jumps <= MOST_JUMPS * steady.size:
            measured, bound = compare(single[steady], double[steady], start[steady])
            note += f"; without {jumps} of its {steady.size:,} values, where the rule jumps in float64 too"
    apart = "its rule written apart" if rule_of(config) else "the same in float64"
    title = f"{UPDATES} updates of the optimizer against {apart}, of the distance travelled"
    return measured / bound, Result(title, measured, bound, note)


def compare(single: np.ndarray, double: np.ndarray, start: np.ndarray) -> tuple[float, float]:
    """The difference of the precisions and its bound, both divided by the distance travelled."""
    distance = float(np.linalg.norm(double - start))
    rounding = UPDATES * HALF_ULP * float(np.linalg.norm(double))
    bound = ARITHMETIC_BOUND + (rounding / distance if distance else 0.0)
    return ratio(float(np.linalg.norm(single - double)), distance), bound


def _noisy(gradient: np.ndarray, seed: int) -> list[np.ndarray]:
    """UPDATES gradients: `gradient` with normal noise of its root mean square."""
    generator = np.random.default_rng(seed)
    size = np.float32(np.sqrt(np.mean(np.square(gradient, dtype=np.float64))))
    return [gradient + size * generator.standard_normal(gradient.shape, np.float32) for _ in range(UPDATES)]


def _nudge(gradients: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Yields NUDGES variants of the gradients, each value changed by up to 8 units in float32's last place."""
    generator = np.random.default_rng(0)
    for _ in range(NUDGES):
        yield [gradient * (1 + generator.uniform(-(2.0**-20), 2.0**-20, gradient.shape)) for gradient in gradients]


def _update(
    optimizer: Optimizer, name: str, start: np.ndarray, gradients: Sequence[np.ndarray], decayed: bool
) -> np.ndarray:
    """Makes one update per gradient. Returns the weight as float64."""
    variable = tf.Variable(start, name=name)
    optimizer.build([variable], [decayed])
    for done, gradient in enumerate(gradients):
        step = tf.constant(done, tf.int64)
        optimizer.apply([tf.constant(gradient, variable.dtype)], optimizer.learning_rate(step), step)
    return variable.numpy().astype(np.float64)


def _by_rule(
    rule: Rule, optimizer: Optimizer, start: np.ndarray, gradients: Sequence[np.ndarray], decay: float
) -> np.ndarray:
    """As `_update`, by the rule; the rates are those of the optimizer, which may compute them."""
    weight = start
    for done, gradient in enumerate(gradients):
        rate = float(optimizer.learning_rate(tf.constant(done, tf.int64)))
        weight = rule(weight, gradient.astype(np.float64), rate, decay)
    return weight
