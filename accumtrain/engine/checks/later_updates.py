"""Checks what an update makes of its number: the rate, and the moving average of the weights."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from accumtrain.engine.checks.rate_rules import base_rate, rate_of, telling_updates
from accumtrain.engine.checks.result import Result, ratio, worst
from accumtrain.engine.checks.window_checks import WindowOfExamples
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.optim.config import OptimConfig
from accumtrain.optim.schedules import ScheduleConfig

RATE_BOUND = 1e-6  # of the rate before its factor, both of which are float32
AVERAGE_BOUND = 1e-6  # of the change that the update makes of the average, beside the rounding of both
MOST_UPDATES = 20  # that are asked for their rate
LATE = 10**6  # updates, after which the average's own decay holds


def check_later_updates(
    window: Window,
    step: Step,
    strategy: tf.distribute.Strategy,
    examples: WindowOfExamples,
    optim: OptimConfig,
    schedule: ScheduleConfig,
    total: int,
    decay: float,
) -> list[Result]:
    """Makes commits as at other updates of the run. Afterwards the window is of no more use.

    Args:
        window: whose buffers are clear.
        step: of the window and the strategy.
        total: number of updates of the run.
        decay: of the moving average; 0 for none.
    """
    results = []
    if rate_of(optim, schedule, 1, total) is not None:
        results.append(_rates(window, step, optim, schedule, total))
    if decay:
        results.append(_average(window, step, strategy, examples, decay))
    return results


def _rates(window: Window, step: Step, optim: OptimConfig, schedule: ScheduleConfig, total: int) -> Result:
    updates = telling_updates(schedule, total)
    errors = {}
    for t in updates[:: -(-len(updates) // MOST_UPDATES)]:
        window.step.assign(t - 1)
        rate = float(step.commit(partial=True)["learning_rate"])  # of an empty window, which changes nothing
        errors[t] = ratio(abs(rate - (rate_of(optim, schedule, t, total) or 0.0)), base_rate(optim, t))
    farthest = worst(errors, errors.__getitem__)
    name = f"rate of {len(errors)} of {total} updates against its definition, of the rate without schedule"
    return Result(name, errors[farthest], RATE_BOUND, f"farthest away: update {farthest}")


def _average(
    window: Window, step: Step, strategy: tf.distribute.Strategy, examples: WindowOfExamples, decay: float
) -> Result:
    """The averages are first moved away from the weights, or what the decay keeps of them would not show."""
    assert window.ema is not None
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
    return Result(name, worst(distances), AVERAGE_BOUND)


def _values(variables: list[tf.Variable]) -> list[np.ndarray]:
    return [variable.numpy().astype(np.float64) for variable in variables]


def _distance(before: np.ndarray, after: np.ndarray, expected: np.ndarray) -> float:
    """|after - expected| / |expected - before|, without what the rounding to float32 makes of it."""
    rounding = 2.0**-22 * float(np.linalg.norm(expected)) + 2.0**-22 * float(np.linalg.norm(before))
    change = float(np.linalg.norm(expected - before))
    return ratio(worst([float(np.linalg.norm(after - expected)) - rounding, 0.0]), change)
