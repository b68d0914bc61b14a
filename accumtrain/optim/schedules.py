"""Factors on the optimizer's rate, counted in updates: t = step + 1 is the update made when `step` are done.

Every schedule rises linearly to 1 at update t = warmup (as t / warmup: no update has rate 0). From there on it is

    constant   1
    cosine     half a cosine, 1 at update max(warmup, 1), `final` at the run's last update
    step       factor^k with k boundaries <= step: the first b updates do not see the boundary b
    rsqrt      sqrt(timescale / max(t, timescale))
"""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf

from accumtrain.config import CosineConfig, RsqrtConfig, ScheduleConfig, StepConfig

Schedule = Callable[[tf.Tensor], tf.Tensor]


def build_schedule(config: ScheduleConfig, total_steps: int) -> Schedule:
    """Returns the function from `step` (int64 scalar, updates done) to the factor (float32 scalar).

    Args:
        config: the kind and its lengths, in updates.
        total_steps: updates in the whole run.
    """
    main = _BUILDERS[config.kind](config, total_steps)
    if not config.warmup:
        return main

    def with_warmup(step: tf.Tensor) -> tf.Tensor:
        ramp = tf.cast(step + 1, tf.float32) / config.warmup
        return tf.minimum(ramp, 1.0) * main(step)

    return with_warmup


def _constant(config: ScheduleConfig, total_steps: int) -> Schedule:
    return lambda step: tf.ones((), tf.float32)


def _cosine(config: CosineConfig, total_steps: int) -> Schedule:
    peak = max(config.warmup, 1)
    length = max(total_steps - peak, 1)

    def factor(step: tf.Tensor) -> tf.Tensor:
        progress = tf.clip_by_value(tf.cast(step + 1 - peak, tf.float32) / length, 0.0, 1.0)
        return config.final + (1.0 - config.final) * 0.5 * (1.0 + tf.cos(math.pi * progress))

    return factor


def _step(config: StepConfig, total_steps: int) -> Schedule:
    boundaries = tf.constant(config.boundaries, tf.int64, shape=[len(config.boundaries)])
    factors = tf.constant([config.factor**k for k in range(len(config.boundaries) + 1)], tf.float32)

    def factor(step: tf.Tensor) -> tf.Tensor:
        passed = tf.math.count_nonzero(boundaries <= step)
        return tf.gather(factors, passed)

    return factor


def _rsqrt(config: RsqrtConfig, total_steps: int) -> Schedule:
    def factor(step: tf.Tensor) -> tf.Tensor:
        t = tf.cast(step + 1, tf.float32)
        return tf.math.rsqrt(tf.maximum(t, config.timescale) / config.timescale)

    return factor


_BUILDERS: dict[str, Callable[..., Schedule]] = {
    "constant": _constant,
    "cosine": _cosine,
    "step": _step,
    "rsqrt": _rsqrt,
}
