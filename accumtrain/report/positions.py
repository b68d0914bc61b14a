"""The report of job=evaluate about a class for each position, such as a pixel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accumtrain.config.jobs import cell
from accumtrain.console import say, table
from accumtrain.report.classes import CONFUSION, SHOWN, Confusion, draw_confusion


@dataclass(frozen=True)
class PositionResult:
    """The results of one class. A number is None if no position has it.

    `positions`: the number of those that are of it. `iou`: those that are of it and taken for it, by those that are of
    it or taken for it. `dice`: the harmonic mean of precision and recall. `precision`: the share of those taken for it
    that are of it. `recall`: the share of those of it that are taken for it.
    """

    name: str
    positions: int
    iou: float | None
    dice: float | None
    precision: float | None
    recall: float | None

    @classmethod
    def of(cls, name: str, hits: int, there: int, taken: int) -> PositionResult:
        """Return the results of a class from the numbers of its hits, its positions, and those taken for it."""
        parts = ((hits, there + taken - hits), (2 * hits, there + taken), (hits, taken), (hits, there))
        return cls(name, there, *(part / whole if whole else None for part, whole in parts))


@dataclass(frozen=True)
class PositionReport:
    """The confusions of the classes of positions. `unit` is the word for a position."""

    confusion: Confusion
    unit: str

    @property
    def classes(self) -> Sequence[PositionResult]:
        """The classes, lowest IoU first. Those that neither side has come last."""
        counts = self.confusion.counts
        taken = [sum(column) for column in zip(*counts, strict=True)]
        results = [
            PositionResult.of(name, counts[number][number], self.confusion.examples[number], taken[number])
            for number, name in enumerate(self.confusion.names)
        ]
        return sorted(results, key=lambda result: math.inf if result.iou is None else result.iou)

    def describe(self) -> dict[str, Any]:
        """Return classes (lowest IoU first) and the matrix of their confusions."""
        return {"classes": [asdict(result) for result in self.classes], "confusions": self.confusion.counts}

    def show(self) -> None:
        rows = [
            (result.name, f"{result.positions:,}", *(cell(value, ".4f") for value in numbers))
            for result in self.classes[:SHOWN]
            for numbers in [(result.iou, result.dice, result.precision, result.recall)]
        ]
        table("classes, lowest IoU first", ("class", self.unit, "IoU", "Dice", "precision", "recall"), rows)
        if len(self.classes) > SHOWN:
            say(f"... and {len(self.classes) - SHOWN:,} more")

    def draw(self, title: str, folder: Path, end: str) -> list[Path]:
        """Draw the confusion matrix."""
        matrix = folder / f"{CONFUSION}{end}.png"
        draw_confusion(self.confusion, title, matrix)
        return [matrix]
