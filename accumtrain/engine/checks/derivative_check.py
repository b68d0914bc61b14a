"""Checks the gradient of a window against the change of its loss along random directions of the weights, in float64.

The other checks share layers, their pullbacks and the loss with what they check. This one takes only values: the logits
of the model, and a loss that is written here once more. What it finds is thus independent of how gradients are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.engine.checks.result import Result, ratio
from accumtrain.engine.checks.window_checks import WindowOfExamples
from accumtrain.engine.loss import weighted_sums
from accumtrain.engine.micro_mode import micro_mode
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.kinds.losses import CrossEntropyConfig, LossConfig

DIRECTIONS = 3
STEPS = 1e-6, 1e-7, 1e-8  # of a direction as long as the weights; the best counts, as a ReLU may have its kink within
BOUND = 1e-5  # of the derivative, or of what a typical direction would give
LOSS_BOUND = 1e-10


def check_derivative(
    window_for: Callable[[str], Window], policies: Iterable[str], examples: WindowOfExamples, loss: LossConfig
) -> tuple[list[Result], list[np.ndarray]]:
    """Checks each memory policy.

    Args:
        window_for: policy -> a window at update 0, on one device, in float64.

    Returns:
        The results, and the mean gradient of the last policy.
    """
    results: list[Result] = []
    for policy in policies:
        window = window_for(policy)
        strategy = tf.distribute.get_strategy()
        Step(window, strategy).accumulate(examples.micro_batches(strategy), examples.steps)
        gradient = [buffer.numpy() for buffer in window.gradients]
        values = _Values(window, examples, loss)
        difference = ratio(abs(float(window.loss.numpy()) - values.total()), abs(values.total()))
        results.append(Result(f"loss against one written apart, memory={policy}", difference, LOSS_BOUND))
        results.append(_along_directions(window, gradient, values, policy))
        mean = [each / float(window.examples.numpy()) for each in gradient]
    return results, mean


def _along_directions(window: Window, gradient: Sequence[np.ndarray], values: _Values, policy: str) -> Result:
    generator = np.random.default_rng(0)
    start = [variable.numpy() for variable in window.variables_]
    worst = 0.0
    for _ in range(DIRECTIONS):
        direction = [generator.standard_normal(value.shape) * _size(value) for value in start]
        expected = sum(float(np.vdot(g, d)) for g, d in zip(gradient, direction, strict=True))
        typical = float(np.sqrt(sum(np.sum(np.square(g * _size(s))) for g, s in zip(gradient, start, strict=True))))
        measured = [values.derivative(start, direction, step) for step in STEPS]
        worst = max(worst, min(abs(each - expected) for each in measured) / typical)
    name = f"gradient against differences of the loss in float64, memory={policy}"
    return Result(name, worst, BOUND)


def _size(value: np.ndarray) -> float:
    """Root mean square; 1 for a variable that is 0."""
    return float(np.sqrt(np.mean(np.square(value)))) or 1.0


class _Values:
    """The loss of all examples of a window, as a function of the weights."""

    def __init__(self, window: Window, examples: WindowOfExamples, loss: LossConfig):
        self._window, self._examples, self._loss = window, examples, loss
        self._logits = tf.function(self._compute, autograph=False, reduce_retracing=True)

    def derivative(self, start: Sequence[np.ndarray], direction: Sequence[np.ndarray], step: float) -> float:
        """The change of the loss from `step` before to `step` behind the weights, per step."""
        ends = []
        for sign in (1, -1):
            for variable, value, towards in zip(self._window.variables_, start, direction, strict=True):
                variable.assign(value + sign * step * towards)
            ends.append(self.total())
        for variable, value in zip(self._window.variables_, start, strict=True):
            variable.assign(value)
        return (ends[0] - ends[1]) / (2 * step)

    def total(self) -> float:
        """The sum of the loss over the examples, each with its weight."""
        batches = self._examples.micro_batches(tf.distribute.get_strategy())
        total = 0.0
        for place in range(self._examples.steps):
            batch = next(batches)
            logits = self._logits(batch, tf.constant(place))
            total += self._loss_of(batch, logits)
        return total

    def _compute(self, batch: Mapping[str, Any], place: tf.Tensor) -> Any:
        mode = micro_mode(self._window.seed, tf.constant(0), place, self._window.micro_steps, batch)
        return self._window.model(batch["image"], mode)

    def _loss_of(self, batch: Mapping[str, Any], logits: Any) -> float:
        if isinstance(self._loss, CrossEntropyConfig):
            return cross_entropy(self._loss, tf.nest.map_structure(np.asarray, dict(batch)), np.asarray(logits))
        return float(weighted_sums([self._window.loss_function], logits, batch)[0].numpy())


def cross_entropy(config: CrossEntropyConfig, batch: Mapping[str, np.ndarray], logits: np.ndarray) -> float:
    """The weighted sum over a batch of the cross-entropy, by its definition: - sum over classes of target * log p."""
    count, classes = logits.shape
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))

    def of(labels: np.ndarray) -> np.ndarray:
        target = np.full([count, classes], config.label_smoothing / classes)
        target[np.arange(count), labels] += 1.0 - config.label_smoothing
        factor = 1.0 if config.class_weights is None else np.asarray(config.class_weights)[labels]
        return -factor * (target * log_p).sum(axis=1)

    values = of(batch["label"])
    if "share" in batch:
        values = batch["share"] * values + (1.0 - batch["share"]) * of(batch["other_label"])
    return float((values * batch.get("weight", np.ones(count))).sum())
