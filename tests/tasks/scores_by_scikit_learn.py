"""Writes scores_by_scikit_learn.json, the scores of the tables below, where scikit-learn is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_suffix(".json")
UNKNOWN = 7  # every so many cells


def _wave(rows: int, columns: int, start: float) -> np.ndarray:
    """Float64 numbers between -1 and 1, without a random generator, so that all versions of NumPy agree."""
    return np.sin(1e3 * np.sin(start + np.arange(rows * columns, dtype=np.float64))).reshape(rows, columns)


def _with_unknown(table: np.ndarray) -> np.ndarray:
    values = table.astype(np.float64).ravel()
    values[3::UNKNOWN] = np.nan
    return values.reshape(table.shape)


def labels() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Labels [N, K], and logits [N, K] in exact float32."""
    logits = _wave(60, 4, 0.1).astype(np.float32)
    found = _wave(60, 4, 5.0) + logits > 0.3  # scores say something of the labels
    coarse = np.round(logits * 3) / np.float32(2)  # ties, also at 0
    equal = np.zeros([17, 1])  # F1 is 2/5, 4/10 and 6/15 at the first, sixth and eleventh score
    equal[[0, 5, 10, 16]] = 1
    one = np.zeros([12, 2])
    one[5, 0] = one[0, 1] = 1
    return {
        "no ties": (found.astype(np.float64), logits),
        "ties": (found.astype(np.float64), coarse),
        "all scores the same": (found.astype(np.float64), np.zeros_like(logits)),
        "unknown": (_with_unknown(found), logits),
        "unknown, ties": (_with_unknown(found), coarse),
        "the same F1": (equal, -np.arange(17, dtype=np.float32)[:, np.newaxis]),
        "a single positive": (one, logits[:12, :2]),
        "a single positive, ties": (one, coarse[:12, :2]),
        "all positive": (np.ones([9, 3]), coarse[:9, :3]),
        "the first has none": (np.concatenate([np.zeros([60, 1]), found[:, 1:]], 1), coarse),
        "a label of one example": (np.array([[1.0, np.nan], [np.nan, 1.0], [np.nan, 0.0]]), logits[:3, :2]),
    }


def numbers() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Numbers [N, K] and what a model says, [N, K]."""
    true = _wave(50, 3, 0.7) * [1.0, 100.0, 1e-3] + [0.0, 1e4, 5.0]
    said = true + _wave(50, 3, 9.0) * [0.5, 80.0, 5e-3]
    return {
        "numbers": (true, said),
        "unknown": (_with_unknown(true), said),
        "right": (true, true),
        "the mean": (true, np.broadcast_to(true.mean(0), true.shape)),
        "one number": (true[:, 1:2], said[:, 1:2]),
    }


def of_label(truth: np.ndarray, logits: np.ndarray) -> dict[str, float]:
    """The scores of one label, [N], that has a positive example. `threshold` is that of the highest F1."""
    from sklearn.metrics import average_precision_score, f1_score, precision_recall_curve

    known = ~np.isnan(truth)
    truth, logits = truth[known], logits[known]
    _, _, thresholds = precision_recall_curve(truth, logits)
    by_threshold = {float(t): f1_score(truth, logits >= t) for t in thresholds}
    highest = max(by_threshold.values())
    return {
        "average_precision": float(average_precision_score(truth, logits)),
        "f1": float(f1_score(truth, logits >= 0, zero_division=0.0)),
        "threshold": min(t for t, value in by_threshold.items() if value > highest - 1e-12),
        "highest_f1": float(highest),
    }


def of_number(true: np.ndarray, said: np.ndarray) -> dict[str, float]:
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

    known = ~np.isnan(true)
    pair = true[known], said[known]
    return {
        "mae": float(mean_absolute_error(*pair)),
        "rmse": float(root_mean_squared_error(*pair)),
        "r2": float(r2_score(*pair)),
    }


def by_column(measure: Any, table: tuple[np.ndarray, np.ndarray]) -> list[Any]:
    """The scores of each column; null where no example is positive, which scikit-learn calls 0."""
    return [measure(a, b) if np.nansum(np.abs(a)) else None for a, b in zip(table[0].T, table[1].T, strict=True)]


def main() -> None:
    import sklearn

    found = {
        "scikit-learn": sklearn.__version__,
        "labels": {name: by_column(of_label, table) for name, table in labels().items()},
        "numbers": {name: by_column(of_number, table) for name, table in numbers().items()},
    }
    FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
