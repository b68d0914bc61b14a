"""The keys of job=bench and job=lr."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from accumtrain.fields import COUNT, NOT_NEGATIVE, POSITIVE, Range, Role


@dataclass(kw_only=True)
class BenchConfig:
    """The length of job=bench: it ends once both minimums are reached.

    `updates`: smallest number of updates.
    `seconds`: shortest time in seconds.
    """

    ROLE: ClassVar[Role] = Role.UNNAMED

    updates: Annotated[int, COUNT] = 5
    seconds: Annotated[float, NOT_NEGATIVE] = 10.0


@dataclass(kw_only=True)
class RangeTestConfig:
    """The rates that job=lr tries. The rate rises by the same factor after each update.

    `updates`: number of updates of the test.
    `low`: the rate of the first update.
    `high`: the rate of the last update; must be above range_test.low.
    """

    ROLE: ClassVar[Role] = Role.UNNAMED

    updates: Annotated[int, Range(2)] = 100
    low: Annotated[float, POSITIVE] = 1e-6
    high: Annotated[float, POSITIVE] = 10.0
