"""Means that forget as many examples in a branch as in the run, whatever the batch: their half-lives in examples."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from accumtrain.config.schema import Config
from accumtrain.optim.config import OptimConfig


def keep_half_lives(config: Config, batch: int, told: float) -> Config:
    """Return the configuration of a run with half-lives in the place of shares, of which an update keeps the same.

    These are optim.beta2 and ema.decay. A half-life that the run has stays, and so does optim.beta1.

    Args:
        batch: examples of an update that keeps these shares.
        told: what an example counts in half-lives.
    """
    examples, optim, ema = batch * told, config.optim, config.ema
    share = constant_beta2(optim)
    if share:
        default = type(optim).__dataclass_fields__["beta2"].default
        found: dict[str, Any] = {"half_life": find_half_life(share, examples), "beta2": default}
        optim = replace(optim, **found)
    if ema.decay:
        ema = replace(ema, half_life=find_half_life(ema.decay, examples), decay=0.0)
    return replace(config, optim=optim, ema=ema)


def constant_beta2(optim: OptimConfig) -> float | None:
    """Return the share of the squared gradients that each update keeps, of any batch; None if there is none."""
    return None if getattr(optim, "half_life", None) is not None else getattr(optim, "beta2", None)


def find_half_life(share: float, examples: float) -> float:
    """Return the examples after which half is forgotten, if an update of so many keeps a share."""
    return examples * math.log(2) / -math.log(share)


def find_beta2(config: Config, told: float) -> float | None:
    """Return the share of the squared gradients that an update keeps; None if it is not constant, or there is none."""
    half_life: float | None = getattr(config.optim, "half_life", None)
    return constant_beta2(config.optim) if half_life is None else 2 ** (-config.batch_size * told / half_life)


def counts_examples(config: Config) -> bool:
    """Return whether a branch of the run needs to know what an example counts in half-lives."""
    return config.has_half_lives or bool(constant_beta2(config.optim)) or config.ema.decay > 0
