"""The results of the branches: of each its curve, of each batch the losses, the speed and the memory."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from accumtrain.fields import is_finite_number
from accumtrain.measure.batch.beginning import Beginning
from accumtrain.measure.batch.branches import Branch
from accumtrain.measure.batch.training import COMPLETED
from accumtrain.runs.contents import measured, read_records, read_summary


@dataclass(frozen=True)
class HeldOutPoint:
    """An evaluation in a branch.

    Attributes:
        examples: trained on since the beginning.
        seconds: of training on them, without the start, evaluations and compiling. None if no update was timed.
        loss: on the held-out examples.
    """

    examples: int
    seconds: float | None
    loss: float


@dataclass(frozen=True)
class BranchResult:
    """How a branch ended, and its curve from the beginning on.

    Attributes:
        ended: a word of training.py.
        examples_per_second: the median over its records; None if no update was timed.
        peak_bytes: tensors at the peak, or what was resident where tensors are not counted.
    """

    branch: Branch
    ended: str
    curve: tuple[HeldOutPoint, ...]
    examples_per_second: float | None
    peak_bytes: int | None

    @property
    def seconds(self) -> float | None:
        return self.curve[-1].seconds


@dataclass(frozen=True)
class BatchRow:
    """The branches of a batch with one factor on the rate: a row of the table.

    Attributes:
        ended: of the first branch that has not completed, else that it has.
        losses: held-out losses after the same examples, of each order of these.
        losses_in_time: those after the same seconds. None where the branch was not timed.
    """

    batch: int
    factor: float
    rate: float | None
    beta2: float | None
    steps: int
    updates: int
    ended: str
    losses: tuple[float, ...]
    losses_in_time: tuple[float | None, ...]
    examples_per_second: float | None
    peak_bytes: int | None

    @property
    def completed(self) -> bool:
        return self.ended == COMPLETED

    @property
    def loss(self) -> float | None:
        return mean_of(self.losses)

    @property
    def spread(self) -> float | None:
        return spread_of(self.losses)

    @property
    def loss_in_time(self) -> float | None:
        return mean_of(self.losses_in_time)

    @property
    def spread_in_time(self) -> float | None:
        return spread_of(self.losses_in_time)


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean; None without values, or if one is missing."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def spread_of(values: Sequence[float | None]) -> float | None:
    """Return the difference of the largest and the smallest value; None for fewer than two, or if one is missing."""
    known = [value for value in values if value is not None]
    return max(known) - min(known) if len(known) > 1 and len(known) == len(values) else None


# ---- of a branch ----


def read_result(branch: Branch, ended: str, beginning: Beginning) -> BranchResult:
    """Return the result of a branch that has ended, from its files."""
    records = [record for record in measured(read_records(branch.folder)) if record["step"] > beginning.step]
    speeds = [
        record["examples_per_second"]
        for record in records
        if record["split"] == "train" and "examples_per_second" in record
    ]
    speed = statistics.median(speeds) if speeds else None
    examples = {record["step"]: (record["step"] - beginning.step) * branch.batch for record in records}
    evaluated = [(0, beginning.loss)] + [
        (examples[record["step"]], record["loss"]) for record in records if record["split"] == beginning.split
    ]
    curve = tuple(
        HeldOutPoint(made, None if speed is None else made / speed, loss)
        for made, loss in dict(evaluated).items()
        if is_finite_number(loss)
    )
    memory = (read_summary(branch.folder) or {}).get("memory", {})
    peak = memory.get("tensor_peak_bytes") or memory.get("rss_peak_bytes")
    return BranchResult(branch, ended, curve, speed, peak)


def loss_after(curve: Sequence[HeldOutPoint], seconds: float) -> float | None:
    """Return the loss after so many seconds, on straight lines between the evaluations; None if it is not known."""
    for before, after in itertools.pairwise(curve):
        if before.seconds is not None and after.seconds is not None and before.seconds <= seconds <= after.seconds:
            share = (seconds - before.seconds) / (after.seconds - before.seconds)
            return before.loss + share * (after.loss - before.loss)
    return None


# ---- of a batch ----


def shortest_seconds(results: Sequence[BranchResult]) -> float | None:
    """Return the seconds of the branch that has completed in the shortest time."""
    return min(
        (result.seconds for result in results if result.ended == COMPLETED and result.seconds is not None), default=None
    )


def make_rows(results: Sequence[BranchResult], beginning: Beginning) -> list[BatchRow]:
    """Return a row for each batch and factor, in the order of the branches."""
    seconds = shortest_seconds(results)
    groups: dict[tuple[int, float], list[BranchResult]] = {}
    for result in results:
        groups.setdefault((result.branch.batch, result.branch.factor), []).append(result)
    return [_make_row(group, seconds, beginning) for group in groups.values()]


def _make_row(group: Sequence[BranchResult], seconds: float | None, beginning: Beginning) -> BatchRow:
    first = group[0].branch
    config = first.config
    failed = [result.ended for result in group if result.ended != COMPLETED]
    speeds = [result.examples_per_second for result in group]
    peaks = [result.peak_bytes for result in group if result.peak_bytes is not None]
    assert config.train.steps is not None
    return BatchRow(
        first.batch,
        first.factor,
        config.optim.lr,
        used_beta2(config),
        config.accum.count,
        config.train.steps - beginning.step,
        failed[0] if failed else COMPLETED,
        () if failed else tuple(result.curve[-1].loss for result in group),
        () if failed or seconds is None else tuple(loss_after(result.curve, seconds) for result in group),
        None if failed else mean_of(speeds),
        max(peaks, default=None),
    )


def used_beta2(config: Any) -> float | None:
    """Return the share of the mean squared gradient that an update keeps; None if the optimizer has no such key."""
    return getattr(config.optim, "beta2", None)
