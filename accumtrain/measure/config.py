"""The keys of job=bench, job=lr and job=batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from accumtrain.fields import COUNT, NOT_NEGATIVE, POSITIVE, OneOf, Range, Role


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


@dataclass(kw_only=True)
class BatchTestConfig:
    """The branches of job=batch: from one checkpoint on, each trains with another batch.

    `batches`: the batches that are tried; null: a quarter of batch_size, batch_size, and four times batch_size.
    `examples`: number of examples that each branch trains on, rounded up to whole updates of every batch. null: one
    epoch.
    `seeds`: number of branches for each batch. The first takes the examples in the order of the run, each other one in
    an order of its own, which is the same for all batches.
    `rule`: the rate of a batch, from that of the run: sqrt: times the root of the ratio of both batches. linear: times
    this ratio. none: the same.
    `rates`: further factors on the rate, each for branches of their own. The best factor of a batch is what counts.
    `warmup`: number of updates that are made before the branches, while the rate rises, in the place of a run; null:
    there must be a run.
    """

    ROLE: ClassVar[Role] = Role.UNNAMED

    batches: list[int] | None = None
    examples: Annotated[int | None, COUNT] = None
    seeds: Annotated[int, COUNT] = 2
    rule: Annotated[str, OneOf(("sqrt", "linear", "none"))] = "sqrt"
    rates: list[float] = field(default_factory=lambda: [1.0])
    warmup: Annotated[int | None, COUNT] = None
