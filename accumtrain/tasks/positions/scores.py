"""Measures of the confusions of classes, int64 [C, C]: rows are true classes, columns predicted ones.

A class that neither side has is left out of means.
"""

from __future__ import annotations

import numpy as np


def intersections_over_unions(confusions: np.ndarray) -> np.ndarray:
    """Return the number of hits by that of positions that either side has, float64 [C]; NaN without any."""
    hits = np.diagonal(confusions)
    return _divide(hits, confusions.sum(0) + confusions.sum(1) - hits)


def dice_coefficients(confusions: np.ndarray) -> np.ndarray:
    """Return twice the number of hits by those of both sides together, float64 [C]; NaN without any (also: F1)."""
    return _divide(2 * np.diagonal(confusions), confusions.sum(0) + confusions.sum(1))


def mean_iou(confusions: np.ndarray) -> float:
    """Return the mean intersection over union; NaN if no position has a class."""
    return _mean(intersections_over_unions(confusions))


def mean_dice(confusions: np.ndarray) -> float:
    """Return the mean Dice coefficient; NaN if no position has a class."""
    return _mean(dice_coefficients(confusions))


def _divide(parts: np.ndarray, wholes: np.ndarray) -> np.ndarray:
    return np.divide(parts, wholes, out=np.full(len(wholes), np.nan), where=wholes > 0)


def _mean(values: np.ndarray) -> float:
    found = values[~np.isnan(values)]
    return float(found.mean()) if found.size else float("nan")
