"""Schedules: factors on the optimizer's rate. After `step` updates follows update t = step + 1; t counts from 1.

Every schedule rises linearly to 1 at update t = warmup (as t / warmup, so no update has rate 0). From there on it is

    constant      1
    cosine        half a cosine: 1 at update max(warmup, 1), `final` at the last update of the run
    step          factor^k for k boundaries <= step, so the first b updates are before the boundary b
    rsqrt         sqrt(timescale / max(t, timescale))
    inverse_time  1 / (1 + decay * n / timescale), n updates after the first whole rate

one_cycle (Smith & Topin 2018, arXiv:1708.07120) has a rise of its own, and no warm-up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from accumtrain.kinds.schedules import (
    SCHEDULES,
    ConstantConfig,
    CosineConfig,
    InverseTimeConfig,
    OneCycleConfig,
    RsqrtConfig,
    ScheduleConfig,
    StepConfig,
)
from accumtrain.kinds.table import load

Schedule = Callable[[tf.Tensor], tf.Tensor]  # from `step` (int64 scalar, updates done) to the factor (float32 scalar)


def constant_schedule(*, warmup: int = 0) -> Schedule:
    """The factor is 1 after `warmup` updates of linear rise."""
    return _with_warmup(lambda step: tf.ones((), tf.float32), warmup)


def cosine_schedule(total_steps: int, *, final: float = 0.0, warmup: int = 0) -> Schedule:
    """The factor falls from 1 as half a cosine, to `final` at update `total_steps`."""
    peak = max(warmup, 1)
    length = max(total_steps - peak, 1)

    def factor(step: tf.Tensor) -> tf.Tensor:
        return final + (1.0 - final) * _falling(tf.cast(step + 1 - peak, tf.float32) / length)

    return _with_warmup(factor, warmup)


def step_schedule(boundaries: Sequence[int], *, factor: float = 0.1, warmup: int = 0) -> Schedule:
    """The factor is multiplied by `factor` after each of the increasing numbers of updates in `boundaries`."""
    limits = tf.constant(boundaries, tf.int64)
    factors = tf.constant([factor**k for k in range(len(boundaries) + 1)], tf.float32)

    def current(step: tf.Tensor) -> tf.Tensor:
        passed = tf.math.count_nonzero(limits <= step)
        return tf.gather(factors, passed)

    return _with_warmup(current, warmup)


def rsqrt_schedule(timescale: int = 10000, *, warmup: int = 0) -> Schedule:
    """The factor is 1 for `timescale` updates, then falls as sqrt(timescale / t)."""

    def factor(step: tf.Tensor) -> tf.Tensor:
        t = tf.cast(step + 1, tf.float32)
        return tf.math.rsqrt(tf.maximum(t, timescale) / timescale)

    return _with_warmup(factor, warmup)


def inverse_time_schedule(
    timescale: int = 10000, *, decay: float = 1.0, staircase: bool = False, warmup: int = 0
) -> Schedule:
    """1 / (1 + decay * t / timescale), t updates after the first whole rate; `staircase` rounds t / timescale down."""
    peak = max(warmup, 1)

    def factor(step: tf.Tensor) -> tf.Tensor:
        t = tf.maximum(step + 1 - peak, 0)
        passed = tf.cast(t // timescale, tf.float32) if staircase else tf.cast(t, tf.float32) / timescale
        return 1.0 / (1.0 + decay * passed)

    return _with_warmup(factor, warmup)


def one_cycle_schedule(total_steps: int, *, rise: float = 0.3, start: float = 0.04, final: float = 4e-6) -> Schedule:
    """The factor is `start` at update 1, 1 at update `rise` * total_steps, and `final` at update `total_steps`.

    Between them it follows half a cosine. The peak is the first update if it would come before that. Where it comes
    before the second, the rise begins one update before the peak, and so before update 1.
    """
    peak = max(rise * total_steps, 1.0)
    up, down = max(peak - 1.0, 1.0), max(total_steps - peak, 1.0)

    def factor(step: tf.Tensor) -> tf.Tensor:
        t = tf.cast(step + 1, tf.float32)
        rising = 1.0 + (start - 1.0) * _falling(1.0 - (peak - t) / up)
        return tf.where(t < peak, rising, final + (1.0 - final) * _falling((t - peak) / down))

    return factor


def exponential_schedule(first: float, last: float, total_steps: int) -> Schedule:
    """The factor is multiplied by the same number after each update: from `first` to `last` at update `total_steps`."""
    growth = math.log(last / first) / max(total_steps - 1, 1)
    return lambda step: first * tf.exp(growth * tf.cast(step, tf.float32))


def _falling(progress: tf.Tensor) -> tf.Tensor:
    """Half a cosine from 1 to 0 as `progress` goes from 0 to 1; constant outside."""
    return 0.5 * (1.0 + tf.cos(math.pi * tf.clip_by_value(progress, 0.0, 1.0)))


def _with_warmup(main: Schedule, warmup: int) -> Schedule:
    if not warmup:
        return main

    def factor(step: tf.Tensor) -> tf.Tensor:
        ramp = tf.cast(step + 1, tf.float32) / warmup
        return tf.minimum(ramp, 1.0) * main(step)

    return factor


# --- from a configuration ---------------------------------------------------------------------------------------


def build_schedule(config: ScheduleConfig, total_steps: int) -> Schedule:
    """Returns the schedule of `config` for a run of `total_steps` updates."""
    schedule: Schedule = load(SCHEDULES[config.kind].build)(config, total_steps)
    return schedule


def build_constant(config: ConstantConfig, total_steps: int) -> Schedule:
    return constant_schedule(warmup=config.warmup)


def build_cosine(config: CosineConfig, total_steps: int) -> Schedule:
    return cosine_schedule(total_steps, final=config.final, warmup=config.warmup)


def build_step(config: StepConfig, total_steps: int) -> Schedule:
    return step_schedule(config.boundaries, factor=config.factor, warmup=config.warmup)


def build_rsqrt(config: RsqrtConfig, total_steps: int) -> Schedule:
    return rsqrt_schedule(config.timescale, warmup=config.warmup)


def build_inverse_time(config: InverseTimeConfig, total_steps: int) -> Schedule:
    return inverse_time_schedule(config.timescale, decay=config.decay, staircase=config.staircase, warmup=config.warmup)


def build_one_cycle(config: OneCycleConfig, total_steps: int) -> Schedule:
    return one_cycle_schedule(total_steps, rise=config.rise, start=config.start, final=config.final)
