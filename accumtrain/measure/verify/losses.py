"""The losses by their definitions, in NumPy: they share no code with those that train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from accumtrain.tasks.config import (
    AbsoluteErrorConfig,
    CrossEntropyConfig,
    HuberConfig,
    LossConfig,
    PositionsConfig,
    SigmoidCrossEntropyConfig,
    SquaredErrorConfig,
    TokenCrossEntropyConfig,
)


def cross_entropy(config: CrossEntropyConfig, labels: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Return - sum over classes of target * log p."""
    count, classes = logits.shape
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    target = np.full([count, classes], config.label_smoothing / classes)
    target[np.arange(count), labels] += 1.0 - config.label_smoothing
    factor = 1.0 if config.class_weights is None else np.asarray(config.class_weights)[labels]
    return -factor * (target * log_p).sum(axis=1)


def sigmoid_cross_entropy(config: SigmoidCrossEntropyConfig, labels: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Return - sum over known labels of log p of those that are there and log (1 - p) of others, by their number."""
    weight = np.asarray(config.factors or 1.0)
    log_p, log_rest = -np.logaddexp(0.0, -logits), -np.logaddexp(0.0, logits)
    return -np.nan_to_num(np.where(labels == 1, weight * log_p, np.where(labels == 0, log_rest, np.nan))).mean(axis=1)


def squared_error(config: LossConfig, numbers: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    return np.nan_to_num((outputs - numbers) ** 2).mean(axis=1)


def absolute_error(config: LossConfig, numbers: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    return np.nan_to_num(np.abs(outputs - numbers)).mean(axis=1)


def huber(config: HuberConfig, numbers: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    """Return half the square of an error as far as loss.delta, and the tangent there beyond it."""
    size = np.nan_to_num(np.abs(outputs - numbers))
    near = np.minimum(size, config.delta)
    return (0.5 * near**2 + config.delta * (size - near)).mean(axis=1)


def token_cross_entropy(config: LossConfig, ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Return - the mean of log p over the positions [N, P] to predict, those with an id from 0 on."""
    log_p = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    means = [-log_p[row, ids[row] >= 0, ids[row, ids[row] >= 0]].sum() for row in range(len(ids))]
    return np.array(means) / np.maximum((ids >= 0).sum(axis=1), 1)


def positions(config: PositionsConfig, classes: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Return the loss of each example, or with loss.over=batch that of all of them, as often as there are examples."""
    if config.is_of_whole_batch:
        return np.full(len(classes), _of_positions(config, classes[classes >= 0], logits[classes >= 0]))
    return np.array(
        [_of_positions(config, own[own >= 0], row[own >= 0]) for own, row in zip(classes, logits, strict=True)]
    )


def _of_positions(config: PositionsConfig, classes: np.ndarray, logits: np.ndarray) -> float:
    """Return the loss of positions [R] that have a class: of cross-entropies, and of overlaps class by class."""
    if not classes.size:
        return 0.0
    p = np.exp(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True))
    of_class = np.take_along_axis(p, classes[:, None], 1)[:, 0]
    factors = np.asarray(config.factors)[classes] if config.factors else 1.0
    entropy = np.mean(factors * (1.0 - of_class) ** config.focus * -np.log(of_class))
    losses = []
    for number in np.unique(classes):
        there, said = classes == number, p[:, number]
        wrong = config.false_alarms * said[~there].sum() + config.misses * (1.0 - said[there]).sum()
        losses.append(wrong / (said[there].sum() + wrong))
    return float(config.entropy * entropy + config.overlap * np.mean(losses))


FORMULAS: dict[type[LossConfig], Callable[[Any, np.ndarray, np.ndarray], np.ndarray]] = {
    CrossEntropyConfig: cross_entropy,
    SigmoidCrossEntropyConfig: sigmoid_cross_entropy,
    SquaredErrorConfig: squared_error,
    AbsoluteErrorConfig: absolute_error,
    HuberConfig: huber,
    TokenCrossEntropyConfig: token_cross_entropy,
    PositionsConfig: positions,
}


def has_formula(config: LossConfig) -> bool:
    """Return whether there is a definition here of a loss."""
    return type(config) in FORMULAS


def sum_losses(config: LossConfig, batch: Mapping[str, np.ndarray], outputs: np.ndarray) -> float:
    """Return the sum of the losses over a batch, each with the weight of its example. Mixed examples have two parts."""
    formula = FORMULAS[type(config)]
    values = formula(config, batch["targets"], outputs)
    if "share" in batch:
        share = batch["share"].astype(np.float64)
        values = share * values + (1.0 - share) * formula(config, batch["other_targets"], outputs)
    return float((values * batch.get("weight", np.ones(len(values)))).sum())
