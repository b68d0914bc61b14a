"""The schedules: a factor on the optimizer's rate. `warmup` and every other length count updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from accumtrain.errors import ConfigError
from accumtrain.kinds.table import Choice, Kind, Table, required
from accumtrain.kinds.values import COUNT, FRACTION, NOT_NEGATIVE, POSITIVE, show


@dataclass(kw_only=True)
class ScheduleConfig(Choice):
    """Keys of every schedule.

    `warmup`: number of updates over which the factor rises linearly to 1; 0: none.

    Attributes:
        rises: the schedule has a rise of its own, so it can't have a warm-up before.
    """

    warmup: Annotated[int, NOT_NEGATIVE] = 0

    rises: ClassVar[bool] = False

    def check(self) -> None:
        if self.rises and self.warmup:
            raise ConfigError(
                f"schedule.warmup={self.warmup}: schedule={self.kind} has a rise of its own; leave schedule.warmup out"
            )

    def unreached(self, total: int) -> list[str]:
        """What a run of `total` updates does not reach of the schedule, as warnings with their remedies."""
        if self.warmup < total:
            return []
        return [_too_long("warmup", self.warmup, self.warmup, total, "and the rate rises to its end")]


def _too_long(key: str, value: int | list[int], last: int, total: int, effect: str) -> str:
    """Says that schedule.`key`=`value` lasts until update `last` of a run of `total` updates, and what that does."""
    updates = "1 update" if total == 1 else f"{total} updates"
    return (
        f"schedule.{key}={show(value)}: the run has {updates}, {effect}; set schedule.{key} below {total}, or "
        f"train.steps above {last}"
    )


@dataclass(kw_only=True)
class ConstantConfig(ScheduleConfig):
    """Factor 1: the optimizer's own rate."""

    kind: str = "constant"


@dataclass(kw_only=True)
class CosineConfig(ScheduleConfig):
    """Half a cosine, from 1 down to `final` at the last update of the run.

    `final`: the factor at the end.
    """

    kind: str = "cosine"
    final: Annotated[float, FRACTION] = 0.0


@dataclass(kw_only=True)
class StepConfig(ScheduleConfig):
    """The factor falls in steps.

    `boundaries`: numbers of updates after which it falls, increasing.
    `factor`: what it is multiplied by at each of them.
    """

    kind: str = "step"
    boundaries: list[int] = required("[40000,60000]")
    factor: Annotated[float, POSITIVE] = 0.1

    def check(self) -> None:
        super().check()
        if any(boundary < 1 for boundary in self.boundaries) or self.boundaries != sorted(set(self.boundaries)):
            raise ConfigError(
                f"schedule.boundaries={show(self.boundaries)}: must be increasing numbers of updates, each at least 1; "
                "for example [40000,60000]"
            )

    def unreached(self, total: int) -> list[str]:
        late = [boundary for boundary in self.boundaries if boundary >= total]
        if not late:
            return super().unreached(total)
        effect = f"so the rate does not fall after {' and '.join(map(str, late))}"
        return [*super().unreached(total), _too_long("boundaries", self.boundaries, late[-1], total, effect)]


@dataclass(kw_only=True)
class RsqrtConfig(ScheduleConfig):
    """sqrt(timescale / max(t, timescale)) at update t.

    `timescale`: updates after which the factor begins to fall.
    """

    kind: str = "rsqrt"
    timescale: Annotated[int, COUNT] = 10000

    def unreached(self, total: int) -> list[str]:
        if self.timescale < total:
            return super().unreached(total)
        effect = "so the rate does not fall"
        return [*super().unreached(total), _too_long("timescale", self.timescale, self.timescale, total, effect)]


@dataclass(kw_only=True)
class InverseTimeConfig(ScheduleConfig):
    """1 / (1 + decay * n / timescale), n updates after the warm-up.

    `decay`: how fast the factor falls.
    `timescale`: updates in which the divisor grows by schedule.decay.
    `staircase`: rounds n / timescale down, so that the factor falls in steps.
    """

    kind: str = "inverse_time"
    decay: Annotated[float, POSITIVE] = 1.0
    timescale: Annotated[int, COUNT] = 10000
    staircase: bool = False


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


SCHEDULES: Table[Kind[ScheduleConfig]] = Table("schedule.kind")
SCHEDULES.add(
    Kind(ConstantConfig, "accumtrain.optim.rate_schedules:build_constant"),
    Kind(CosineConfig, "accumtrain.optim.rate_schedules:build_cosine"),
    Kind(StepConfig, "accumtrain.optim.rate_schedules:build_step"),
    Kind(RsqrtConfig, "accumtrain.optim.rate_schedules:build_rsqrt"),
    Kind(InverseTimeConfig, "accumtrain.optim.rate_schedules:build_inverse_time"),
    Kind(OneCycleConfig, "accumtrain.optim.rate_schedules:build_one_cycle"),
)
