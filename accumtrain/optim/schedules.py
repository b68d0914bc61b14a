"""The schedules: factors on the optimizer's rate, each a class with its keys and its formula.

The factor of update t, which counts from 1, is read when `step` = t - 1 updates are done. `warmup` and every other
length count updates. TensorFlow is imported where a factor is computed, as the command line reads the keys without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from accumtrain.console import format_things
from accumtrain.errors import ConfigError
from accumtrain.fields import COUNT, FRACTION, NOT_NEGATIVE, POSITIVE, OneOf, Role, format_value
from accumtrain.registry import ComponentConfig, Entry, Registry, required

if TYPE_CHECKING:
    import tensorflow as tf

Schedule = Callable[["tf.Tensor"], "tf.Tensor"]  # from `step` (int64 scalar) to the factor (a float scalar)


@dataclass(kw_only=True)
class ScheduleConfig(ComponentConfig):
    """Keys of every schedule.

    `warmup`: number of updates over which the factor rises linearly to 1; 0: none.

    Attributes:
        rises: the schedule has a rise of its own, so it can't have a warm-up before.
    """

    warmup: Annotated[int, NOT_NEGATIVE] = 0

    ROLE: ClassVar[Role] = Role.RULE
    rises: ClassVar[bool] = False

    def factor_at(self, t: tf.Tensor, total: int) -> tf.Tensor:
        """Return the factor of update `t` of `total` without the warm-up; both are scalars of the same float dtype.

        It is in 0..1, and above 0 before the last update. At update 1 it is exactly 1, unless the schedule `rises`. One
        that falls from its first update on begins with update `first_whole`: until then it is 1.
        """
        raise NotImplementedError

    def build(self, total: int, dtype: tf.DType | None = None) -> Schedule:
        """Return the schedule of a run of `total` updates. Its warm-up rises as t / warmup, so no update has rate 0.

        Args:
            dtype: in which it computes, that of the optimizer's state. None is float32.
        """

        def factor_after(step: tf.Tensor) -> tf.Tensor:
            import tensorflow as tf

            t = tf.cast(step + 1, dtype or tf.float32)
            factor = tf.cast(self.factor_at(t, total), t.dtype)
            return tf.minimum(t / self.warmup, 1.0) * factor if self.warmup else factor

        return factor_after

    @property
    def first_whole(self) -> int:
        """The first update with the whole rate."""
        return max(self.warmup, 1)

    def check(self) -> None:
        if self.rises and self.warmup:
            raise ConfigError(
                f"schedule.warmup={self.warmup}: schedule={self.kind} has a rise of its own; leave schedule.warmup out"
            )

    def unreached(self, total: int) -> list[str]:
        """Return warnings, with their remedies, of the parts of the schedule that a run of `total` updates misses."""
        if self.warmup < total:
            return []
        return [_warn_too_long("warmup", self.warmup, self.warmup, total, "and the rate rises to its end")]


def _warn_too_long(key: str, value: int | list[int], last: int, total: int, effect: str) -> str:
    """Return the warning that schedule.`key`=`value` lasts until update `last` of a run of `total` updates."""
    return (
        f"schedule.{key}={format_value(value)}: the run has {format_things(total, 'update')}, {effect}; set "
        f"schedule.{key} below {total}, or train.steps above {last}"
    )


@dataclass(kw_only=True)
class ConstantConfig(ScheduleConfig):
    """Factor 1: the optimizer's own rate."""

    kind: str = "constant"

    def factor_at(self, t: tf.Tensor, total: int) -> tf.Tensor:
        import tensorflow as tf

        return tf.ones((), t.dtype)


@dataclass(kw_only=True)
class CosineConfig(ScheduleConfig):
    """Half a cosine, from 1 down to `final` at the last update of the run.

    `final`: the factor at the end.
    """

    kind: str = "cosine"
    final: Annotated[float, FRACTION] = 0.0

    def factor_at(self, t: tf.Tensor, total: int) -> tf.Tensor:
        passed = (t - self.first_whole) / max(total - self.first_whole, 1)
        return self.final + (1.0 - self.final) * _half_cosine(passed)


@dataclass(kw_only=True)
class LinearConfig(ScheduleConfig):
    """A straight line from 1 down to `final`, which an update behind the last of the run would have.

    Without a warm-up it is the schedule of PyTorch's transformers.

    `final`: the factor at the end.
    """

    kind: str = "linear"
    final: Annotated[float, FRACTION] = 0.0

    def factor_at(self, t: tf.Tensor, total: int) -> tf.Tensor:
        import tensorflow as tf

        passed = (t - self.first_whole) / max(total + 1 - self.first_whole, 1)
        return 1.0 - (1.0 - self.final) * tf.clip_by_value(passed, 0.0, 1.0)


@dataclass(kw_only=True)
class StepConfig(ScheduleConfig):
    """The factor falls in steps.

    `boundaries`: increasing numbers of updates, after each of which the rate falls.
    `factor`: factor at each boundary.
    """

    kind: str = "step"
    boundaries: list[int] = required("[40000,60000]")
    factor: Annotated[float, POSITIVE] = 0.1

    def factor_at(self, t: tf.Tensor, total: int) -> tf.Tensor:
        import tensorflow as tf

        factors = tf.constant([self.factor**k for k in range(len(self.boundaries) + 1)], t.dtype)
        passed = tf.math.count_nonzero(tf.constant(self.boundaries, t.dtype) < t)
        return tf.gather(factors, passed)

    def check(self) -> None:
        super().check()
        if any(boundary < 1 for boundary in self.boundaries) or self.boundaries != sorted(set(self.boundaries)):
            raise ConfigError(
                f"schedule.boundaries={format_value(self.boundaries)}: must be increasing numbers of updates, each at "
                "least 1; for example [40000,60000]"
            )

    def unreached(self, total: int) -> list[str]:
        late = [boundary for boundary in self.boundaries if boundary >= total]
        if not late:
            return super().unreached(total)
        effect = f"so the rate does not fall after {' and '.join(map(str, late))}"
        return [*super().unreached(total), _warn_too_long("boundaries", self.boundaries, late[-1], total, effect)]


@dataclass(kw_only=True)
class RsqrtConfig(ScheduleConfig):
    """sqrt(timescale / max(t, timescale)) at update t.

    `timescale`: updates after which the factor begins to fall.
    """

    kind: str = "rsqrt"
    timescale: Annotated[int, COUNT] = 10000

    def factor_at(self, t: tf.Tensor, total: int) -> tf.Tensor:
        import tensorflow as tf

        return tf.math.rsqrt(tf.maximum(t, self.timescale) / self.timescale)

    def unreached(self, total: int) -> list[str]:
        if self.timescale < total:
            return super().unreached(total)
        effect = "so the rate does not fall"
        return [*super().unreached(total), _warn_too_long("timescale", self.timescale, self.timescale, total, effect)]


@dataclass(kw_only=True)
class InverseTimeConfig(ScheduleConfig):
    """1 / (1 + decay * n / timescale), n updates after the warm-up.

    `decay`: how fast the factor falls.
    `timescale`: updates in which the divisor grows by schedule.decay.
    `staircase`: round n / timescale down, so that the factor falls in steps.
    """

    kind: str = "inverse_time"
    decay: Annotated[float, POSITIVE] = 1.0
    timescale: Annotated[int, COUNT] = 10000
    staircase: bool = False

    def factor_at(self, t: tf.Tensor, total: int) -> tf.Tensor:
        import tensorflow as tf

        periods = tf.maximum(t - self.first_whole, 0.0) / self.timescale
        if self.staircase:
            periods = tf.floor(periods)
        return 1.0 / (1.0 + self.decay * periods)


@dataclass(kw_only=True)
class OneCycleConfig(ScheduleConfig):
    """Half a cosine up from `start` to 1, and another down to `final` at the end of the run.

    `rise`: share of the run in which the factor rises.
    `start`: the factor at the beginning.
    `final`: the factor at the end.
    """

    kind: str = "one_cycle"
    rise: Annotated[float, FRACTION] = 0.3
    start: Annotated[float, FRACTION] = 0.04
    final: Annotated[float, FRACTION] = 4e-6

    rises: ClassVar[bool] = True

    def factor_at(self, t: tf.Tensor, total: int) -> tf.Tensor:
        """Follow Smith & Topin 2018, arXiv:1708.07120: the factor is 1 at update `rise` * total, or at the first.

        If the peak comes before update 2, the rise begins one update before the peak, and so before update 1.
        """
        import tensorflow as tf

        peak = max(self.rise * total, 1.0)
        up, down = max(peak - 1.0, 1.0), max(total - peak, 1.0)
        rising = 1.0 + (self.start - 1.0) * _half_cosine(1.0 - (peak - t) / up)
        return tf.where(t < peak, rising, self.final + (1.0 - self.final) * _half_cosine((t - peak) / down))


@dataclass(kw_only=True)
class WsdConfig(ScheduleConfig):
    """Warm-up, stable, decay: 1 after the warm-up, then down to `final` at the last update of the run.

    `decay`: length of the decay at the end of the run: below 1 a share of the run, from 1 on a number of updates.
    `shape`: form of the decay: linear, or 1-sqrt, which falls faster at first.
    `final`: the factor at the end.
    """

    kind: str = "wsd"
    decay: Annotated[float, POSITIVE] = 0.2
    shape: Annotated[str, OneOf(("linear", "1-sqrt"))] = "1-sqrt"
    final: Annotated[float, FRACTION] = 0.0

    def factor_at(self, t: tf.Tensor, total: int) -> tf.Tensor:
        """Follow Hu et al. 2024, arXiv:2404.06395; the shapes are those of Hägele et al. 2024, arXiv:2405.18392.

        The decay begins no earlier than the warm-up ends. Before it the factor does not depend on `total`.
        """
        import tensorflow as tf

        end = max(total, self.first_whole + 1)  # a run that ends in its warm-up has no decay
        length = min(self._length(end), end - self.first_whole)
        left = tf.clip_by_value((end - t) / length, 0.0, 1.0)
        rest = left if self.shape == "linear" else 1.0 - tf.sqrt(1.0 - left)
        return self.final + (1.0 - self.final) * rest

    def _length(self, total: int) -> float:
        """Return the length of the decay in updates."""
        return self.decay * total if self.decay < 1 else self.decay

    def check(self) -> None:
        super().check()
        if self.decay > 1 and self.decay != int(self.decay):
            raise ConfigError(
                f"schedule.decay={format_value(self.decay)}: must be a share of the run below 1, or a whole number of "
                f"updates; for example 0.2 or {math.ceil(self.decay)}"
            )

    def unreached(self, total: int) -> list[str]:
        room = total - self.first_whole
        if room < 1 or self._length(total) <= room:
            return super().unreached(total)
        return [
            f"schedule.decay={self.decay:g}: the run has {total} updates, and {room} come after the first with the "
            f"full rate, so the decay takes these; set schedule.decay={room} or lower, or a larger train.steps"
        ]


def _half_cosine(progress: tf.Tensor) -> tf.Tensor:
    """Fall from 1 to 0 as half a cosine while `progress` goes from 0 to 1; stay constant outside."""
    import tensorflow as tf

    return 0.5 * (1.0 + tf.cos(math.pi * tf.clip_by_value(progress, 0.0, 1.0)))


KINDS = (
    ConstantConfig,
    CosineConfig,
    LinearConfig,
    StepConfig,
    RsqrtConfig,
    InverseTimeConfig,
    OneCycleConfig,
    WsdConfig,
)
SCHEDULES: Registry[Entry[ScheduleConfig]] = Registry("schedule.kind")
SCHEDULES.add(*(Entry(config, config) for config in KINDS))


# ---- for programs ----


def constant_schedule(*, warmup: int = 0) -> Schedule:
    """Return the factor 1, after `warmup` updates of linear rise."""
    return ConstantConfig(warmup=warmup).build(total=0)


def cosine_schedule(total_steps: int, *, final: float = 0.0, warmup: int = 0) -> Schedule:
    """Return a factor that falls from 1 as half a cosine, to `final` at update `total_steps`."""
    return CosineConfig(final=final, warmup=warmup).build(total_steps)


def step_schedule(boundaries: Sequence[int], *, factor: float = 0.1, warmup: int = 0) -> Schedule:
    """Return a factor that is multiplied by `factor` after each of the increasing numbers of updates `boundaries`."""
    return StepConfig(boundaries=list(boundaries), factor=factor, warmup=warmup).build(total=0)


def rsqrt_schedule(timescale: int = 10000, *, warmup: int = 0) -> Schedule:
    """Return a factor that is 1 for `timescale` updates, then falls as sqrt(timescale / t)."""
    return RsqrtConfig(timescale=timescale, warmup=warmup).build(total=0)


def exponential_schedule(first: float, last: float, total_steps: int) -> Schedule:
    """Return a factor that grows by the same ratio each update, from `first` to `last` at update `total_steps`."""
    growth = math.log(last / first) / max(total_steps - 1, 1)

    def factor_after(step: tf.Tensor) -> tf.Tensor:
        import tensorflow as tf

        return first * tf.exp(growth * tf.cast(step, tf.float32))

    return factor_after
