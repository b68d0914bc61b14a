"""Weights, gradients and rates of one trajectory, and every kind of optimizer."""

from __future__ import annotations

import numpy as np
import pytest

from accumtrain.optim import config

SHAPES = [(), (5,), (4, 6), (3, 4, 5), (3, 3, 2, 5), (7, 1)]
UPDATES = 50


@pytest.fixture
def configs() -> dict[str, config.OptimConfig]:
    return {
        "adam": config.AdamConfig(lr=1e-2, weight_decay=0.1, epsilon=1e-8),
        "adamw": config.AdamWConfig(lr=1e-2, weight_decay=0.1, epsilon=1e-8),
        "sgd": config.SgdConfig(lr=1e-2, weight_decay=0.1, momentum=0.9, nesterov=True),
        "adafactor": config.AdafactorConfig(lr=None, weight_decay=0.1, momentum=0.9),
        "keras": config.KerasOptimConfig(lr=1e-2, weight_decay=0.1, name="Nadam"),
    }


@pytest.fixture
def weights() -> list[np.ndarray]:
    """Draw weights of ranks 0 to 4, all float32 numbers, so that float32 and float64 start from the same."""
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape).astype(np.float32).astype(np.float64) for shape in SHAPES]


@pytest.fixture
def gradients() -> list[list[np.ndarray]]:
    """For each update, with what breaks second moments: all zero at updates 1 and 11, a row and a column always."""
    rng = np.random.default_rng(1)
    series = []
    for update in range(UPDATES):
        scale = 0.0 if update % 10 == 0 and update < 20 else 10.0 ** rng.uniform(-3, 1)
        series.append([(scale * rng.normal(size=shape)).astype(np.float32).astype(np.float64) for shape in SHAPES])
        for gradient in series[-1]:
            if gradient.ndim >= 2:
                gradient[..., 1, :] = 0.0
                gradient[..., -1] *= gradient.shape[-1] == 1
    return series


@pytest.fixture
def rates() -> list[float]:
    """The rates that `train` of references.py gives at a base rate of 1e-2."""
    return [1e-2 / (1 + step // 20) for step in range(UPDATES)]
