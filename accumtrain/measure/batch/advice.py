"""The comparison of batches, and what it says in a few sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from accumtrain.console import format_measure
from accumtrain.measure.batch.results import BatchRow, spread_of


@dataclass(frozen=True)
class Comparison:
    """The batches by a loss.

    Attributes:
        best: with the lowest loss.
        loss: of the best.
        next: with the second lowest.
        margin: from the best to the next.
        spread: of the losses of one batch, the largest of those compared; None with one order of the examples.
        tied: other batches that are not farther from the best than the spread, the nearest first.
        all_tied: these are all others.
    """

    best: BatchRow
    loss: float
    next: BatchRow
    margin: float
    spread: float | None
    tied: tuple[BatchRow, ...]
    all_tied: bool

    @property
    def facts(self) -> dict[str, Any]:
        """The part of batch.json about the best."""
        return {"batch": self.best.batch, "loss": self.loss, "margin": self.margin, "spread": self.spread}


def rank(rows: Sequence[BatchRow]) -> list[BatchRow]:
    """Return the row of the best factor on the rate for each batch that has completed."""
    best: dict[int, BatchRow] = {}
    for row in sorted((row for row in rows if row.losses), key=lambda row: fmean(row.losses)):
        best.setdefault(row.batch, row)
    return list(best.values())


def compare(rows: Sequence[BatchRow], losses_of: Callable[[BatchRow], Sequence[float]]) -> Comparison | None:
    """Return the comparison of batches by the means of their losses; None if fewer than two have any."""
    known = sorted((row for row in rows if losses_of(row)), key=lambda row: fmean(losses_of(row)))
    if len(known) < 2:
        return None
    best, *others = known
    spreads = {row.batch: spread_of(losses_of(row)) or 0.0 for row in known}
    distances = {row.batch: fmean(losses_of(row)) - fmean(losses_of(best)) for row in others}
    has_spread = len(losses_of(best)) > 1
    tied = [row for row in others if distances[row.batch] <= max(spreads[best.batch], spreads[row.batch])]
    compared = [best, *(tied or others[:1])]
    return Comparison(
        best=best,
        loss=fmean(losses_of(best)),
        next=others[0],
        margin=distances[others[0].batch],
        spread=max(spreads[row.batch] for row in compared) if has_spread else None,
        tied=tuple(tied) if has_spread else (),
        all_tied=has_spread and tied == others,
    )


def advise(rows: Sequence[BatchRow], examples: int, seconds: float | None) -> list[str]:
    """Return sentences that name the best batch, after the same examples and after the same seconds.

    Args:
        rows: of all batches and factors.
        examples: of each branch.
        seconds: of the branch that has completed in the shortest time; None if none was timed.
    """
    ranked = rank(rows)
    if not ranked:
        ends = " or ".join(sorted({row.ended for row in rows}))
        return [f"no branch has completed ({ends}); where they diverged, give smaller factors: batch_test.rates=[0.1]"]
    by_examples = compare(ranked, lambda row: row.losses)
    if by_examples is None:
        return [f"only batch {ranked[0].batch} has completed, so there is nothing to compare it with"]
    tried = [row.batch for row in rows]
    said = [say_comparison(f"after {examples:,} examples", by_examples, tried)]
    by_seconds = compare(ranked, lambda row: row.losses_in_time)
    if by_seconds is not None and seconds is not None:
        said.append(say_comparison(f"after {seconds:.3g} s of training", by_seconds, tried))
    if simple := find_without_accumulation(by_examples):
        same = simple is by_examples.best
        said.append(
            f"batch {simple.batch} needs no accumulation" + ("" if same else ", and is as good after the same examples")
        )
    return said


def say_untried(batch: int, tried: Sequence[int]) -> str:
    """Return the end of a sentence if the best batch is at the edge of those tried, unless that is 1."""
    others = "smaller" if batch == min(tried) > 1 else "larger" if batch == max(tried) else ""
    return f"; {others} batches were not tried (batch_test.batches)" if others else ""


def find_without_accumulation(found: Comparison) -> BatchRow | None:
    """Return the best, or a smaller batch that is as good, if it needs no accumulation."""
    if found.best.steps == 1:
        return found.best
    return next((row for row in found.tied if row.steps == 1 and row.batch < found.best.batch), None)


def say_comparison(where: str, found: Comparison, tried: Sequence[int]) -> str:
    """Return a sentence about the best batch, its margin and the spread."""
    best = f"{name_row(found.best)} has the lowest loss, {format_measure(found.loss)}"
    margin = f"{format_measure(found.margin)} less than {name_row(found.next)}"
    untried = say_untried(found.best.batch, tried)
    if found.spread is None:
        return (
            f"{where}, {best}, {margin}; one order of the examples tells no spread (batch_test.seeds=2 does){untried}"
        )
    spread = format_measure(found.spread)
    if found.all_tied:
        return f"{where}, no difference is larger than the spread of {spread}: {best}, {margin}"
    if found.tied:
        others = " and ".join(map(name_row, found.tied))
        verb = "is" if len(found.tied) == 1 else "are"
        return f"{where}, {best}, but {others} {verb} no farther from it than the spread of {spread}{untried}"
    return f"{where}, {best}, {margin}; two orders of their examples differ by up to {spread}{untried}"


def name_row(row: BatchRow) -> str:
    """Return the batch of a row in words, with a factor on its rate that is not 1."""
    return f"batch {row.batch}" + ("" if row.factor == 1 else f" at {row.factor:g} times its rate")
