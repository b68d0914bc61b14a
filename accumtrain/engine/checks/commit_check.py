"""Checks the update that a commit makes of the gradient in the buffers, written once more in float64 NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from accumtrain.engine.checks.optimizer_check import compare
from accumtrain.engine.checks.result import Result, ratio, worst
from accumtrain.engine.checks.update_rules import Rule, rule_of
from accumtrain.optim.config import OptimConfig

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
) -> list[Result]:
    """Compares the weights after the first commit of a run with the rule of the optimizer, after clipping.

    Args:
        gradients: the gradient of the window, before clipping, one array for each weight.
        scalars: what the commit returned.
        rate_factors: factor on the rate of each weight.
    """
    gradients = [gradient.astype(np.float64) for gradient in gradients]
    norm = float(np.sqrt(sum(np.sum(np.square(gradient)) for gradient in gradients)))
    error = ratio(abs(scalars["grad_norm"] - norm), norm)
    results = [Result("norm of the gradient against float64", error, NORM_BOUND, "" if norm else "the gradient is 0")]
    if rule_of(config) is None:
        return results
    if 0.0 < config.clip_norm < norm:
        gradients = [gradient * (config.clip_norm / norm) for gradient in gradients]
    if config.adaptive_clip:
        gradients = [_clipped(*pair, config.adaptive_clip) for pair in zip(gradients, before, strict=True)]
    shares = []
    for old, new, gradient, decay, factor in zip(before, after, gradients, decayed, rate_factors, strict=True):
        wide = old.astype(np.float64)
        rule = _new(config)
        expected = rule(wide, gradient, scalars["learning_rate"] * factor, config.weight_decay if decay else 0.0)
        shares.append(compare(new.astype(np.float64), expected, wide))
    measured, bound = worst(shares, lambda share: share[0] / share[1])
    return [*results, Result("weights after the commit against its rule written apart", measured, bound)]


def _new(config: OptimConfig) -> Rule:
    make = rule_of(config)
    assert make is not None
    return make()


def _clipped(gradient: np.ndarray, weight: np.ndarray, share: float) -> np.ndarray:
    """The gradient, of each unit at most `share` of the norm of its weights. A unit is an index of the last axis."""
    axes = tuple(range(gradient.ndim - 1)) if gradient.ndim > 1 else None

    def norm(x: np.ndarray) -> np.ndarray:
        return np.sqrt(np.sum(np.square(x.astype(np.float64)), axis=axes, keepdims=True))

    most = share * np.maximum(norm(weight), SMALLEST_UNIT)
    size = norm(gradient)
    return np.where(size > most, gradient * most / np.maximum(size, most), gradient)
