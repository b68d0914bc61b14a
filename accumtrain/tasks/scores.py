"""Measures of all examples of a split, in NumPy: of labels by their probabilities, and of numbers.

Arrays are [N, K]: of labels 0, 1 or NaN for an unknown one, or of numbers or NaN. Unknown ones have no part in them. A
mean over labels leaves out those without a positive example.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

HALF = 0.5  # the threshold of a probability where none was chosen


# ---- labels ----


def precision_recall(labels: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return precision, recall and threshold, float64 [M] each, at each score that occurs, falling.

    At a threshold t the label is predicted for the examples with a score of t or more.

    Args:
        labels: of one label, [N], at least one of them 1.
        scores: [N].
    """
    right, said, thresholds = _count_said(labels, scores)
    return right / said, right / right[-1], thresholds


def _count_said(labels: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the true positives, the predicted positives and the threshold, float64 [M], at each score, falling."""
    known = ~np.isnan(labels)
    labels, scores = labels[known].astype(np.float64), scores[known]
    order = np.argsort(-scores, kind="stable")
    labels, scores = labels[order], scores[order]
    last = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)  # of each score
    return np.cumsum(labels)[last], last + 1.0, scores[last].astype(np.float64)


def average_precision(labels: np.ndarray, scores: np.ndarray) -> float:
    """Return the sum of precision x rise of recall over falling thresholds; NaN without a positive example.

    Args:
        labels: of one label, [N].
        scores: [N].
    """
    if not np.any(labels == 1):
        return float("nan")
    precision, recall, _ = precision_recall(labels, scores)
    return float(np.sum(precision * np.diff(recall, prepend=0.0)))


def mean_average_precision(labels: np.ndarray, outputs: np.ndarray) -> float:
    """Return the mean of `average_precision` over labels, by logits [N, K]."""
    return _mean_over_labels(average_precision, labels, outputs)


def f1(labels: np.ndarray, said: np.ndarray) -> float:
    """Return 2 TP / (2 TP + FP + FN) of one label; NaN without a positive example.

    Args:
        labels: [N].
        said: bool [N].
    """
    positive = labels == 1
    if not positive.any():
        return float("nan")
    counted = said & ~np.isnan(labels)
    return float(2 * (counted & positive).sum() / (counted.sum() + positive.sum()))


def macro_f1(labels: np.ndarray, outputs: np.ndarray) -> float:
    """Return the mean of `f1` over labels, which are predicted if their probability is a half or more."""
    return _mean_over_labels(lambda one, logits: f1(one, logits >= 0), labels, outputs)


def best_threshold(labels: np.ndarray, scores: np.ndarray) -> float:
    """Return the threshold of the highest F1, the lowest of several; HALF without a positive example.

    Args:
        labels: of one label, [N].
        scores: [N].
    """
    if not np.any(labels == 1):
        return HALF
    right, said, thresholds = _count_said(labels, scores)
    scored = 2 * right / (said + right[-1])  # of whole numbers, so that the same F1 has the same bits
    return float(thresholds[np.flatnonzero(scored == scored.max())[-1]])


def _mean_over_labels(
    measure: Callable[[np.ndarray, np.ndarray], float], labels: np.ndarray, outputs: np.ndarray
) -> float:
    return _mean_of_known(np.array([measure(*column) for column in zip(labels.T, outputs.T, strict=True)]))


# ---- numbers ----


def errors_of(measure: Callable[[np.ndarray, np.ndarray], float], numbers: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Return a measure of each number, float64 [K], over the examples of which it is known; NaN without any."""
    values = []
    for index in range(numbers.shape[1]):
        known = ~np.isnan(numbers[:, index])
        pair = (array[known, index].astype(np.float64) for array in (numbers, found))
        values.append(measure(*pair) if known.any() else float("nan"))
    return np.array(values)


def absolute_error(numbers: np.ndarray, found: np.ndarray) -> float:
    """Return the mean of |found - number|."""
    return float(np.mean(np.abs(found - numbers)))


def root_squared_error(numbers: np.ndarray, found: np.ndarray) -> float:
    """Return the root of the mean of (found - number)^2."""
    return float(np.sqrt(np.mean((found - numbers) ** 2)))


def determination(numbers: np.ndarray, found: np.ndarray) -> float:
    """Return R2, 1 - sum (found - number)^2 / sum (number - mean)^2; NaN if all numbers are the same."""
    if np.ptp(numbers) == 0:  # their mean may differ from them by a rounding
        return float("nan")
    return float(1.0 - np.sum((found - numbers) ** 2) / np.sum((numbers - numbers.mean()) ** 2))


def mean_absolute_error(numbers: np.ndarray, found: np.ndarray) -> float:
    """Return the mean over numbers of `absolute_error`."""
    return _mean_of_known(errors_of(absolute_error, numbers, found))


def root_mean_squared_error(numbers: np.ndarray, found: np.ndarray) -> float:
    """Return the mean over numbers of `root_squared_error`."""
    return _mean_of_known(errors_of(root_squared_error, numbers, found))


def r2(numbers: np.ndarray, found: np.ndarray) -> float:
    """Return the mean over numbers of `determination`."""
    return _mean_of_known(errors_of(determination, numbers, found))


def _mean_of_known(values: np.ndarray) -> float:
    """Return the mean of those that are not NaN; NaN without any."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")
