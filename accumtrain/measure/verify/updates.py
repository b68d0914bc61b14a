"""Check updates: the optimizer, the first commit, and the rate and average of later updates.

They are compared with rules that are written apart in float64 NumPy (references.py). An optimizer without such a rule,
one of the user's own, is compared with itself in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.measure.verify.references import Rule, base_rate, rate_of, rule_of, telling_updates
from accumtrain.measure.verify.result import CheckResult, max_or_nan, ratio
from accumtrain.measure.verify.window import WindowOfExamples
from accumtrain.optim.config import OptimConfig
from accumtrain.optim.optimizer import Optimizer
from accumtrain.optim.schedules import ScheduleConfig

# ---- the optimizer ----


UPDATES = 5
ARITHMETIC_BOUND = 1e-5  # of the distance travelled
HALF_ULP = 2.0**-24
JUMP = 1e-3  # a nudge of the gradients that moves a value by more than this share of the largest change is a jump
MOST_JUMPS = 1e-4  # largest share of the values that may jump
NUDGES = 10  # one of them finds half of the jumps


def check_optimizer(
    build: Callable[[], Optimizer],
    names: Sequence[str],
    weights: Sequence[np.ndarray],
    gradients: Sequence[np.ndarray],
    decayed: Sequence[bool],
    config: OptimConfig,
) -> CheckResult:
    """Update each variable by itself, in both ways, from the same weights and gradients. Return the worst.

    The bound allows for the rounding of each new weight to float32, which no arithmetic avoids. A few values may be
    left out where the rule is discontinuous, as in the sign of a sum near 0. There a change of the gradients in their
    last bits changes the result much more, in float64 too.

    Args:
        build: makes a new optimizer of the run's configuration.
        gradients: the mean gradient of a window. Each update adds noise of the same size to it.
    """
    results = [
        _check_one(build, config, name, start.astype(np.float32), _noisy(gradient.astype(np.float32), index), decay)
        for index, (name, start, gradient, decay) in enumerate(zip(names, weights, gradients, decayed, strict=True))
    ]
    return max_or_nan(results, lambda result: result[0])[1]


def _check_one(
    build: Callable[[], Optimizer],
    config: OptimConfig,
    name: str,
    start: np.ndarray,
    gradients: Sequence[np.ndarray],
    decay: bool,
) -> tuple[float, CheckResult]:
    """Return measured / bound, and the result, of one variable."""

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
    apart = "an independent formula" if rule_of(config) else "the same in float64"
    title = f"{UPDATES} updates of the optimizer against {apart}, of the distance travelled"
    return measured / bound, CheckResult(title, measured, bound, note)


def compare(single: np.ndarray, double: np.ndarray, start: np.ndarray) -> tuple[float, float]:
    """Return the difference of the precisions and its bound, both divided by the distance travelled."""
    distance = float(np.linalg.norm(double - start))
    rounding = UPDATES * HALF_ULP * float(np.linalg.norm(double))
    bound = ARITHMETIC_BOUND + (rounding / distance if distance else 0.0)
    return ratio(float(np.linalg.norm(single - double)), distance), bound


def _noisy(gradient: np.ndarray, seed: int) -> list[np.ndarray]:
    """Return UPDATES gradients: `gradient` with normal noise of its root mean square."""
    generator = np.random.default_rng(seed)
    size = np.float32(np.sqrt(np.mean(np.square(gradient, dtype=np.float64))))
    return [gradient + size * generator.standard_normal(gradient.shape, np.float32) for _ in range(UPDATES)]


def _nudge(gradients: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Yield NUDGES variants of the gradients, each value changed by up to 8 units in float32's last place."""
    generator = np.random.default_rng(0)
    for _ in range(NUDGES):
        yield [gradient * (1 + generator.uniform(-(2.0**-20), 2.0**-20, gradient.shape)) for gradient in gradients]


def _update(
    optimizer: Optimizer, name: str, start: np.ndarray, gradients: Sequence[np.ndarray], decayed: bool
) -> np.ndarray:
    """Make one update per gradient. Return the weight as float64."""
    variable = tf.Variable(start, name=name)
    optimizer.build([variable], [decayed])
    for done, gradient in enumerate(gradients):
        step = tf.constant(done, tf.int64)
        optimizer.apply([tf.constant(gradient, variable.dtype)], optimizer.learning_rate(step), step)
    return variable.numpy().astype(np.float64)


def _by_rule(
    rule: Rule, optimizer: Optimizer, start: np.ndarray, gradients: Sequence[np.ndarray], decay: float
) -> np.ndarray:
    """Make the same updates by the rule. The rates are those of the optimizer, which may compute them."""
    weight = start
    for done, gradient in enumerate(gradients):
        rate = float(optimizer.learning_rate(tf.constant(done, tf.int64)))
        weight = rule(weight, gradient.astype(np.float64), rate, decay)
    return weight


# ---- the first commit ----


NORM_BOUND = 1e-5
SMALLEST_UNIT = 1e-3  # the norm that counts for a unit of smaller weights (Brock et al. 2021, arXiv:2102.06171)


def check_commit(
    config: OptimConfig,
    before: Sequence[np.ndarray],
    after: Sequence[np.ndarray],
    gradients: Sequence[np.ndarray],
    scalars: Mapping[str, float],
    decayed: Sequence[bool],
    rate_factors: Sequence[float],
) -> list[CheckResult]:
    """Compare the weights after the first commit of a run with the rule of the optimizer and of clipping."""
    gradients = [gradient.astype(np.float64) for gradient in gradients]
    norm = float(np.sqrt(sum(np.sum(np.square(gradient)) for gradient in gradients)))
    error = ratio(abs(scalars["grad_norm"] - norm), norm)
    results = [
        CheckResult("norm of the gradient against float64", error, NORM_BOUND, "" if norm else "the gradient is 0")
    ]
    rule = rule_of(config)
    if rule is None:
        return results
    if 0.0 < config.clip_norm < norm:
        gradients = [gradient * (config.clip_norm / norm) for gradient in gradients]
    if config.adaptive_clip:
        gradients = [_clipped(*pair, config.adaptive_clip) for pair in zip(gradients, before, strict=True)]
    shares = []
    for old, new, gradient, decay, factor in zip(before, after, gradients, decayed, rate_factors, strict=True):
        wide = old.astype(np.float64)
        expected = rule()(wide, gradient, scalars["learning_rate"] * factor, config.weight_decay if decay else 0.0)
        shares.append(compare(new.astype(np.float64), expected, wide))
    measured, bound = max_or_nan(shares, lambda share: share[0] / share[1])
    return [*results, CheckResult("weights after the commit against an independent formula", measured, bound)]


def _clipped(gradient: np.ndarray, weight: np.ndarray, share: float) -> np.ndarray:
    """Clip the gradient of each unit to `share` of the norm of its weights. A unit is an index of the last axis."""
    axes = tuple(range(gradient.ndim - 1)) if gradient.ndim > 1 else None

    def norm(x: np.ndarray) -> np.ndarray:
        return np.sqrt(np.sum(np.square(x.astype(np.float64)), axis=axes, keepdims=True))

    most = share * np.maximum(norm(weight), SMALLEST_UNIT)
    size = norm(gradient)
    return np.where(size > most, gradient * most / np.maximum(size, most), gradient)


# ---- later updates: the rate, and the moving average of the weights ----


RATE_BOUND = 1e-6  # of the rate before its factor, both of which are float32
AVERAGE_BOUND = 1e-6  # of the change that the update makes of the average, beside the rounding of both
MOST_UPDATES = 20  # the most updates whose rate is compared
LATE = 10**6  # updates after which the average's own decay holds


def check_rates(
    window: Window, step: Step, optim: OptimConfig, schedule: ScheduleConfig, total: int
) -> list[CheckResult]:
    """Make empty commits at several of the run's `total` updates. Afterwards the window's own update is lost."""
    if rate_of(optim, schedule, 1, total) is None:
        return []
    updates = telling_updates(schedule, total)
    errors = {}
    for t in updates[:: -(-len(updates) // MOST_UPDATES)]:
        window.step.assign(t - 1)
        rate = float(step.commit(partial=True)["learning_rate"])  # of an empty window, which changes nothing
        errors[t] = ratio(abs(rate - (rate_of(optim, schedule, t, total) or 0.0)), base_rate(optim, t))
    farthest = max_or_nan(errors, errors.__getitem__)
    name = f"rate of {len(errors)} of {total} updates against its definition, of the rate without schedule"
    return [CheckResult(name, errors[farthest], RATE_BOUND, f"farthest away: update {farthest}")]


def check_average(
    window: Window, step: Step, strategy: tf.distribute.Strategy, examples: WindowOfExamples, decay: float
) -> list[CheckResult]:
    """Check the averages, first moved away from the weights. The share that the decay keeps would not show else."""
    if window.ema is None:
        return []
    distances: list[float] = []
    for done in (0, LATE):
        window.step.assign(done)
        kept = min(decay, (2 + done) / (11 + done))  # (1 + t) / (10 + t) at update t = done + 1
        for average in window.ema.averages:
            average.assign(2.0 * average + 1.0)
        before = _values(window.ema.averages)
        step.accumulate(examples.micro_batches(strategy), examples.steps)
        step.commit(partial=True)
        pairs = zip(before, _values(window.ema.averages), _values(window.variables_), strict=True)
        distances += [_distance(old, new, kept * old + (1 - kept) * weight) for old, new, weight in pairs]
    name = "moving average of the weights against its definition, of its change"
    return [CheckResult(name, max_or_nan(distances), AVERAGE_BOUND)]


def _values(variables: list[tf.Variable]) -> list[np.ndarray]:
    return [variable.numpy().astype(np.float64) for variable in variables]


def _distance(before: np.ndarray, after: np.ndarray, expected: np.ndarray) -> float:
    """Return |after - expected| / |expected - before|, without the rounding to float32."""
    rounding = 2.0**-22 * float(np.linalg.norm(expected)) + 2.0**-22 * float(np.linalg.norm(before))
    change = float(np.linalg.norm(expected - before))
    return ratio(max_or_nan([float(np.linalg.norm(after - expected)) - rounding, 0.0]), change)
