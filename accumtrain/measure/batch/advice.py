"""The comparison of batches, and what it says in a few sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from accumtrain.console import format_measure
from accumtrain.measure.batch.results import BatchRow

Value = Callable[[BatchRow], "float | None"]


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
        is_complete: no batch is clearly worse than the best.
    """

    best: BatchRow
    loss: float
    next: BatchRow
    margin: float
    spread: float | None
    tied: tuple[BatchRow, ...]
    is_complete: bool


def best_of_each(rows: Sequence[BatchRow]) -> list[BatchRow]:
    """Return the row of the best factor on the rate for each batch that has completed, by `loss`."""
    best: dict[int, BatchRow] = {}
    for row in rows:
        other = best.get(row.batch)
        if row.loss is not None and (other is None or other.loss is None or row.loss < other.loss):
            best[row.batch] = row
    return list(best.values())


def compare(rows: Sequence[BatchRow], loss: Value, spread: Value) -> Comparison | None:
    """Return the comparison of batches by a loss; None if fewer than two have one."""
    known = sorted((value, row.batch, row) for row in rows if (value := loss(row)) is not None)
    if len(known) < 2:
        return None
    (lowest, _, best), (second, _, following), *_ = known

    def spread_with(row: BatchRow) -> float | None:
        spreads = [each for each in (spread(best), spread(row)) if each is not None]
        return max(spreads, default=None)

    tied = tuple(
        row for value, _, row in known[1:] if (noise := spread_with(row)) is not None and value - lowest <= noise
    )
    largest = max((noise for row in tied or (following,) if (noise := spread_with(row)) is not None), default=None)
    return Comparison(best, lowest, following, second - lowest, largest, tied, len(tied) == len(known) - 1)


def advise(rows: Sequence[BatchRow], examples: int, seconds: float | None) -> list[str]:
    """Return sentences that name the best batch, after the same examples and after the same seconds.

    Args:
        rows: of all batches and factors.
        examples: of each branch.
        seconds: of the branch that has completed in the shortest time; None if none was timed.
    """
    ranked = best_of_each(rows)
    if not ranked:
        return ["no branch has completed: give smaller factors on the rate, such as batch_test.rates=[0.1]"]
    by_examples = compare(ranked, lambda row: row.loss, lambda row: row.spread)
    if by_examples is None:
        return [f"only batch {ranked[0].batch} has completed, so there is nothing to compare it with"]
    said = [say_comparison(f"after {examples:,} examples", by_examples)]
    by_seconds = compare(ranked, lambda row: row.loss_in_time, lambda row: row.spread_in_time)
    if by_seconds is not None and seconds is not None:
        said.append(say_comparison(f"after {seconds:.3g} s of training", by_seconds))
    if simple := find_without_accumulation(by_examples):
        same = simple is by_examples.best
        said.append(
            f"batch {simple.batch} needs no accumulation" + ("" if same else ", and is as good after the same examples")
        )
    return said


def find_without_accumulation(found: Comparison) -> BatchRow | None:
    """Return the best, or a smaller batch that is as good, if it needs no accumulation."""
    if found.best.steps == 1:
        return found.best
    return next((row for row in found.tied if row.steps == 1 and row.batch < found.best.batch), None)


def say_comparison(where: str, found: Comparison) -> str:
    """Return a sentence about the best batch, its margin and the spread."""
    best = f"{name_row(found.best)} has the lowest loss, {format_measure(found.loss)}"
    margin = f"{format_measure(found.margin)} less than {name_row(found.next)}"
    if found.spread is None:
        return f"{where}, {best}, {margin}; one order of the examples tells no spread (batch_test.seeds=2 does)"
    spread = format_measure(found.spread)
    if found.is_complete:
        return f"{where}, no difference is larger than the spread of {spread}: {best}, {margin}"
    if found.tied:
        others = " and ".join(map(name_row, found.tied))
        verb = "is" if len(found.tied) == 1 else "are"
        return f"{where}, {best}, but {others} {verb} no farther from it than the spread of {spread}"
    return f"{where}, {best}, {margin}; orders of the examples differ by up to {spread}"


def name_row(row: BatchRow) -> str:
    """Return the batch of a row in words, with a factor on its rate that is not 1."""
    return f"batch {row.batch}" + ("" if row.factor == 1 else f" at {row.factor:g} times its rate")
