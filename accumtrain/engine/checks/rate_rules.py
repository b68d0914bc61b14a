"""The learning rate of an update by its definition, in float64 NumPy: what job=verify compares a commit's rate with."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from accumtrain.optim.config import AdafactorConfig, OptimConfig
from accumtrain.optim.schedules import (
    ConstantConfig,
    CosineConfig,
    InverseTimeConfig,
    OneCycleConfig,
    RsqrtConfig,
    ScheduleConfig,
    StepConfig,
)


def cosine(config: CosineConfig, t: int, total: int) -> float:
    first = max(config.warmup, 1)
    return _half_cosine(1.0, config.final, t - first, total - first)


def step(config: StepConfig, t: int, total: int) -> float:
    return float(np.prod([config.factor for boundary in config.boundaries if t > boundary]))


def rsqrt(config: RsqrtConfig, t: int, total: int) -> float:
    return 1.0 if t <= config.timescale else math.sqrt(config.timescale / t)


def inverse_time(config: InverseTimeConfig, t: int, total: int) -> float:
    periods = max(t - max(config.warmup, 1), 0) / config.timescale
    return 1.0 / (1.0 + config.decay * (math.floor(periods) if config.staircase else periods))


def one_cycle(config: OneCycleConfig, t: int, total: int) -> float:
    peak = max(config.rise * total, 1.0)
    if t < peak:
        length = max(peak - 1, 1.0)  # a rise takes an update at least
        return _half_cosine(config.start, 1.0, length - (peak - t), length)
    return _half_cosine(1.0, config.final, t - peak, max(total - peak, 1.0))


FACTORS: dict[type[ScheduleConfig], Callable[[Any, int, int], float]] = {
    ConstantConfig: lambda config, t, total: 1.0,
    CosineConfig: cosine,
    StepConfig: step,
    RsqrtConfig: rsqrt,
    InverseTimeConfig: inverse_time,
    OneCycleConfig: one_cycle,
}


def rate_of(optim: OptimConfig, schedule: ScheduleConfig, t: int, total: int) -> float | None:
    """The rate of update t, counted from 1, in a run of `total` updates; None for a schedule that is not written here.

    An optimizer without a rate in its configuration must be Adafactor, whose own is that of Shazeer & Stern 2018,
    Section 9: min(1e-2, 1 / sqrt(t)).
    """
    factor = FACTORS.get(type(schedule))
    if factor is None or (optim.lr is None and not isinstance(optim, AdafactorConfig)):
        return None
    return base_rate(optim, t) * min(t / schedule.warmup if schedule.warmup else 1.0, 1.0) * factor(schedule, t, total)


def base_rate(optim: OptimConfig, t: int) -> float:
    """The rate before the factor of the schedule."""
    if optim.lr is not None:
        return optim.lr
    assert isinstance(optim, AdafactorConfig)
    largest = 1e-6 * t if optim.warmup_init else 1e-2
    return min(largest, 1.0 / math.sqrt(t)) * (1.0 if optim.scale_parameter else optim.unscaled_relative_step)


def telling_updates(schedule: ScheduleConfig, total: int) -> list[int]:
    """Updates of a run, counted from 1, in which a schedule that is read at a wrong update shows."""
    ends = [1, schedule.warmup, total // 3, 2 * total // 3, total - 1]
    if isinstance(schedule, StepConfig):
        ends += schedule.boundaries
    if isinstance(schedule, (RsqrtConfig, InverseTimeConfig)):
        ends.append(schedule.timescale)
    return sorted({t for end in ends for t in (end, end + 1) if 1 <= t <= total})


def _half_cosine(start: float, end: float, passed: float, length: float) -> float:
    """From `start` to `end`, constant outside."""
    share = min(max(passed / length, 0.0), 1.0) if length > 0 else float(passed > 0)
    return end + (start - end) * (1.0 + math.cos(math.pi * share)) / 2.0
