"""Several updates of one weight by the rules of job=verify, in float64 NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from accumtrain.measure.verify import references
from accumtrain.optim.config import OptimConfig


def by_rule(
    config: OptimConfig, weight: np.ndarray, gradients: Sequence[np.ndarray], rates: Sequence[float]
) -> np.ndarray:
    """The weight after an update for each gradient. Decay is for rank >= 2."""
    make = references.rule_of(config)
    if make is None:
        pytest.fail(f"optim={config.kind} has no rule: write it in NumPy, for RULES in {references.__file__}")
    rule, decay = make(), config.weight_decay if weight.ndim >= 2 else 0.0
    for gradient, rate in zip(gradients, rates, strict=True):
        weight = rule(weight, gradient, rate, decay)
    return weight
