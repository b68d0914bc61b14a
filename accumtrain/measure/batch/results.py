"""The results of the branches: of each its curve, of each batch the losses, the speed and the memory."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from accumtrain.fields import is_finite_number
from accumtrain.measure.batch.beginning import Beginning
from accumtrain.measure.batch.branches import Branch
from accumtrain.measure.batch.means import find_beta2
from accumtrain.measure.batch.training import COMPLETED, NO_LOSS
from accumtrain.runs.contents import measured, read_records, read_summary

SPEED = "examples_per_second"  # of a record


@dataclass(frozen=True)
class HeldOutPoint:
    """An evaluation in a branch: the examples trained on since the beginning, and the held-out loss."""

    examples: int
    loss: float


@dataclass(frozen=True)
class BranchResult:
    """The end of a branch, and its curve from the beginning on.

    Attributes:
        ended: a word of training.py.
        speeds: examples per second of its updates, by record. The start, evaluations and compiling are no part of it.
        peak_bytes: tensors at the peak, or what was resident where tensors are not counted.
    """

    branch: Branch
    ended: str
    curve: tuple[HeldOutPoint, ...]
    speeds: tuple[float, ...]
    peak_bytes: int | None

    @property
    def kind(self) -> tuple[int, float]:
        """The batch and the factor on the rate."""
        return self.branch.batch, self.branch.factor


@dataclass(frozen=True)
class BatchRow:
    """The branches of a batch with one factor on the rate: a row of the table.

    Attributes:
        half_life: of the mean of squared gradients, where it has one.
        beta2: the share of that mean which an update keeps; None if there is none, or it is not constant.
        ended: of the first branch that has not completed, else that it has.
        losses: held-out losses after the same examples, of each order of these.
        losses_in_time: those after the same seconds. None where no update was timed.
        examples_per_second: the median of all records; None if no update was timed.
    """

    batch: int
    factor: float
    rate: float | None
    half_life: float | None
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
    evaluated = [record for record in records if record["split"] == beginning.split]
    losses = {(record["step"] - beginning.step) * branch.batch: record["loss"] for record in evaluated}
    curve = [(made, loss) for made, loss in {0: beginning.loss, **losses}.items() if is_finite_number(loss)]
    if ended == COMPLETED and (not curve or curve[-1][0] != branch.examples_after(beginning.step)):
        ended = NO_LOSS
    speeds = (record.get(SPEED) for record in records if record["split"] == "train")
    memory = (read_summary(branch.folder) or {}).get("memory", {})
    return BranchResult(
        branch,
        ended,
        tuple(HeldOutPoint(*point) for point in curve),
        tuple(speed for speed in speeds if speed is not None),
        memory.get("tensor_peak_bytes") or memory.get("rss_peak_bytes"),
    )


def loss_after(curve: Sequence[HeldOutPoint], examples: float) -> float | None:
    """Return the loss after so many examples, on straight lines between the evaluations; None without two of these.

    Args:
        examples: no more than those of the last evaluation, but for a rounding.
    """
    examples = min(examples, curve[-1].examples)
    for before, after in itertools.pairwise(curve):
        if before.examples <= examples <= after.examples:
            share = (examples - before.examples) / (after.examples - before.examples)
            return before.loss + share * (after.loss - before.loss)
    return None


# ---- of a batch ----


def find_speeds(results: Sequence[BranchResult]) -> dict[tuple[int, float], float]:
    """Return the examples per second of each batch and factor, a median. The order of the examples plays no part."""
    speeds: dict[tuple[int, float], list[float]] = {}
    for result in results:
        speeds.setdefault(result.kind, []).extend(result.speeds)
    return {kind: statistics.median(found) for kind, found in speeds.items() if found}


def shortest_seconds(results: Sequence[BranchResult]) -> float | None:
    """Return the seconds of training of the branch that has completed in the shortest time; None if none was timed."""
    speeds = find_speeds(results)
    seconds = [
        result.curve[-1].examples / speeds[result.kind]
        for result in results
        if result.ended == COMPLETED and result.kind in speeds
    ]
    return min(seconds, default=None)


def make_rows(results: Sequence[BranchResult], beginning: Beginning) -> list[BatchRow]:
    """Return a row for each batch and factor, in the order of the branches."""
    seconds, speeds = shortest_seconds(results), find_speeds(results)
    groups: dict[tuple[int, float], list[BranchResult]] = {}
    for result in results:
        groups.setdefault(result.kind, []).append(result)
    return [_make_row(group, seconds, speeds.get(kind), beginning) for kind, group in groups.items()]


def _make_row(
    group: Sequence[BranchResult], seconds: float | None, speed: float | None, beginning: Beginning
) -> BatchRow:
    first = group[0].branch
    config = first.config
    failed = [result.ended for result in group if result.ended != COMPLETED]
    made = None if seconds is None or speed is None else seconds * speed
    in_time = () if failed else tuple(None if made is None else loss_after(result.curve, made) for result in group)
    return BatchRow(
        batch=first.batch,
        factor=first.factor,
        rate=config.optim.lr,
        half_life=getattr(config.optim, "half_life", None),
        beta2=find_beta2(config, beginning.told),
        steps=config.accum.count,
        updates=first.updates_after(beginning.step),
        ended=failed[0] if failed else COMPLETED,
        losses=() if failed else tuple(result.curve[-1].loss for result in group),
        losses_in_time=in_time,
        examples_per_second=speed,
        peak_bytes=max((result.peak_bytes for result in group if result.peak_bytes is not None), default=None),
    )
