"""Check a window in float64: the derivative of its loss, its precision, and the statistics of batch normalisation.

The other checks share layers, their pullbacks and the loss with what they check. The check of the derivative takes only
values: the logits of the model, and a loss that is written here once more. It compares the gradient with the change of
the loss along random directions of the weights. Its finding is independent of how gradients are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.backprop.mode import EVALUATION, Mode, micro_mode
from accumtrain.engine.losses import WholeBatch, weighted_sums
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.measure.verify.losses import has_formula, sum_losses
from accumtrain.measure.verify.result import CheckResult, max_or_nan, ratio, relative_difference
from accumtrain.measure.verify.window import WindowOfExamples, assign_weights, moving_statistics
from accumtrain.tasks.config import LossConfig

DIRECTIONS = 3
# Shares of a direction as long as the weights. The best step counts: a long one may cross the kink of a ReLU, and
# rounding blurs a short one.
STEPS = 1e-8, 1e-9, 1e-10
DERIVATIVE_BOUND = 1e-5  # of the standard deviation of the derivative over directions
LOSS_BOUND = 1e-10
# The distance of a variable's gradient from that in float64, along it. A value that its rounding moves across the kink
# of a ReLU has another gradient.
ALONG_BOUND = {"float32": 0.25, "bfloat16": 0.8, "float64": 1e-9}
STATISTICS_BOUND = {"float32": 1e-3, "bfloat16": 0.1, "float64": 1e-9}
EVALUATION_BOUND = 1e-9
RANDOM = "no bound can hold: the model draws random numbers, and other ones in float64"
NEGLIGIBLE = 1e-6  # of the gradient, in a variable


@dataclass(frozen=True)
class InFloat64:
    """A window's results in float64.

    Attributes:
        gradient: the mean over its examples, one array for each trainable variable.
        statistics: moving mean and variance of each batch normalisation after an update.
    """

    gradient: list[np.ndarray]
    statistics: list[np.ndarray]


def check_derivative(
    window: Window, examples: WindowOfExamples, loss: LossConfig
) -> tuple[list[CheckResult], InFloat64]:
    """Check the loss and the gradient of a window at update 0 in float64, on one device, and make its update."""
    step = Step(window)
    step.accumulate(examples.micro_batches(), examples.steps)
    gradient = [buffer.numpy() for buffer in window.gradients]
    window_loss = _WindowLoss(window, examples, loss)
    expected = window_loss.total()
    apart = "an independent formula" if has_formula(loss) else "the same function"
    results = [
        CheckResult(
            f"loss against {apart}, in float64",
            ratio(abs(float(window.loss.numpy()) - expected), abs(expected)),
            LOSS_BOUND,
        ),
        _along_directions(window, gradient, window_loss),
    ]
    mean = [total / float(window.weight.numpy()) for total in gradient]
    step.commit()
    return results, InFloat64(mean, moving_statistics(window))


def check_precision(
    found: InFloat64, exact: InFloat64, paths: Sequence[str], precision: str, random: bool
) -> list[CheckResult]:
    """Compare the results of a window in the user's precision with those in float64."""
    least = NEGLIGIBLE * np.sqrt(sum(np.vdot(expected, expected) for expected in exact.gradient))
    along = {
        path: abs(float(np.vdot(actual, expected) / np.vdot(expected, expected)) - 1.0)
        for path, actual, expected in zip(paths, found.gradient, exact.gradient, strict=True)
        if not np.linalg.norm(expected) <= least  # true of NaN
    }
    error = relative_difference(found.gradient, exact.gradient)
    path = max_or_nan(along, along.__getitem__) if along else "the gradient in float64 is 0"
    results = [
        CheckResult(
            f"gradient in {precision} along that in float64, worst variable",
            along.get(path, error),
            None if random else ALONG_BOUND[precision],
            RANDOM if random else f"{path}; the whole gradient is {error:.1e} of its size away",
        )
    ]
    if exact.statistics:
        moved = max_or_nan(
            ratio(float(np.max(np.abs(actual - expected))), float(np.max(np.abs(expected))))
            for actual, expected in zip(found.statistics, exact.statistics, strict=True)
        )
        name = f"moving statistics in {precision} against those in float64"
        results.append(
            CheckResult(name, moved, None if random else STATISTICS_BOUND[precision], RANDOM if random else "")
        )
    return results


def _along_directions(window: Window, gradient: Sequence[np.ndarray], loss: _WindowLoss) -> CheckResult:
    generator = np.random.default_rng(0)
    start = [variable.numpy() for variable in window.variables_]
    sizes = [float(np.sqrt(np.mean(np.square(value)))) or 1.0 for value in start]  # 1 for a variable that is 0
    deviation = np.sqrt(sum(np.sum(np.square(value * size)) for value, size in zip(gradient, sizes, strict=True)))
    errors = []
    for _ in range(DIRECTIONS):
        direction = [size * generator.standard_normal(value.shape) for value, size in zip(start, sizes, strict=True)]
        expected = sum(float(np.vdot(*pair)) for pair in zip(gradient, direction, strict=True))
        measured = [loss.derivative(start, direction, step) for step in STEPS]
        errors.append(float(np.min([ratio(abs(change - expected), deviation) for change in measured])))  # NaN if one is
    return CheckResult("gradient against differences of the loss, in float64", max_or_nan(errors), DERIVATIVE_BOUND)


class _WindowLoss:
    """The loss of all examples of a window, as a function of the weights."""

    def __init__(self, window: Window, examples: WindowOfExamples, loss: LossConfig):
        self._window, self._examples, self._loss = window, examples, loss
        self._logits = tf.function(self._compute, autograph=False, reduce_retracing=True)

    def derivative(self, start: Sequence[np.ndarray], direction: Sequence[np.ndarray], step: float) -> float:
        """Return the change of the loss from `step` before to `step` behind the weights, per step."""
        ends = []
        for sign in (1, -1):
            for variable, value, towards in zip(self._window.variables_, start, direction, strict=True):
                variable.assign(value + sign * step * towards)
            ends.append(self.total())
        assign_weights(self._window, start)
        return (ends[0] - ends[1]) / (2 * step)

    def total(self) -> float:
        """Return the sum of the loss over the examples, each with its weight."""
        batches = [*self._examples.micro_batches()]
        outputs = [self._logits(batch, tf.constant(number)) for number, batch in enumerate(batches)]
        if self._loss.is_of_whole_batch and has_formula(self._loss):
            parts = [tf.nest.map_structure(np.asarray, dict(batch)) for batch in batches]
            whole = tf.nest.map_structure(lambda *each: np.concatenate(each), *parts)
            return sum_losses(self._loss, whole, np.concatenate(outputs))
        if isinstance(self._window.loss_function, WholeBatch):
            _, weight, loss = self._window.loss_function.of_batches(batches, outputs)
            return float(loss.numpy()) * float(weight.numpy())
        total = 0.0
        for batch, logits in zip(batches, outputs, strict=True):
            if has_formula(self._loss):
                total += sum_losses(self._loss, tf.nest.map_structure(np.asarray, dict(batch)), np.asarray(logits))
            else:
                total += float(weighted_sums([self._window.loss_function], logits, batch)[0].numpy())
        return total

    def _compute(self, batch: Mapping[str, Any], number: tf.Tensor) -> Any:
        mode = micro_mode(self._window.seed, tf.constant(0), number, self._window.micro_steps, batch)
        return self._window.model(batch["inputs"], mode)


# ---- the statistics of batch normalisation, in an evaluation ----


def is_random(window: Window, examples: WindowOfExamples) -> bool:
    batch = examples.as_batch()
    one, other = (_logits(window, batch, _training(window, batch, seed)) for seed in (0, 1))
    return not np.array_equal(one, other, equal_nan=True)


def check_evaluation(window: Window, examples: WindowOfExamples, random: bool) -> list[CheckResult]:
    """Check that an evaluation of a batch, normalised by the statistics of this batch, gives the logits of training.

    Args:
        window: in float64, on one device. Its weights stay as they are, its moving statistics do not.
    """
    norms = [norm for norm in window.model.norms if norm.momentum < 1.0]
    if not norms:
        return []
    weights = [variable.numpy() for variable in window.variables_]
    before = [(norm.moving_mean.numpy(), norm.moving_variance.numpy()) for norm in norms]
    step = Step(window)
    step.accumulate(examples.micro_batches(steps=1), 1)
    step.commit(partial=True)
    assign_weights(window, weights)
    for norm, old in zip(norms, before, strict=True):
        for variable, value in zip((norm.moving_mean, norm.moving_variance), old, strict=True):
            variable.assign(value + (variable.numpy() - value) / (1.0 - norm.momentum))  # the batch's own statistics

    batch = examples.as_batch()
    training, evaluated = (_logits(window, batch, mode) for mode in (_training(window, batch, 0), EVALUATION))
    name = "evaluation by the statistics of a batch against its training pass, in float64"
    difference = ratio(float(np.linalg.norm(evaluated - training)), float(np.linalg.norm(training)))
    if random:
        return [CheckResult(name, difference, None, "no bound can hold: in training the model draws random numbers")]
    return [CheckResult(name, difference, EVALUATION_BOUND)]


def _training(window: Window, batch: Mapping[str, Any], seed: int) -> Mode:
    first = tf.constant(0)
    return micro_mode(seed, first, first, window.micro_steps, batch)


def _logits(window: Window, batch: Mapping[str, Any], mode: Mode) -> np.ndarray:
    return np.asarray(tf.function(lambda images: window.model(images, mode), autograph=False)(batch["inputs"]))
