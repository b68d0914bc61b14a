"""The reports of job=evaluate about labels and about numbers, with a panel for each in a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accumtrain.config.jobs import cell
from accumtrain.console import say, table
from accumtrain.report.pictures import fit_name, new_figure, save_figure, without_math

if TYPE_CHECKING:
    import numpy as np

MOST = 24  # panels
ACROSS = 4  # panels in a row
SHOWN = 15  # labels that are printed
SIDE = 3.0  # inches of a panel
NAME_WIDTH = 24  # characters
MOST_POINTS = 5000  # of a panel: evenly spaced ones of more


@dataclass(frozen=True)
class LabelCurve:
    """Precision and recall of a label, [M], over falling thresholds, and both at its own threshold; None if unknown."""

    name: str
    precision: np.ndarray
    recall: np.ndarray
    own_precision: float | None
    own_recall: float | None


@dataclass(frozen=True)
class Numbers:
    """True numbers, NaN where unknown, and the answers of a model: [N] each."""

    name: str
    numbers: np.ndarray
    found: np.ndarray


def draw_labels(labels: Sequence[LabelCurve], title: str, path: Path) -> None:
    """Draw precision against recall of the first MOST labels. A point is that of the label's own threshold."""
    figure, panels = _make_panels([label.name for label in labels], title)
    for axes, label in zip(panels, labels, strict=False):
        axes.step([0.0, *label.recall], [label.precision[0], *label.precision], where="pre", lw=1.5)
        if label.own_precision is not None and label.own_recall is not None:
            axes.plot(label.own_recall, label.own_precision, "o", color="C1")
        axes.set(xlim=(0, 1.02), ylim=(0, 1.02), xlabel="recall", ylabel="precision")
    save_figure(figure, path)


def draw_numbers(numbers: Sequence[Numbers], title: str, path: Path) -> None:
    """Draw the answers of a model against the true values, of the first MOST numbers. On the line there is no error."""
    figure, panels = _make_panels([number.name for number in numbers], title)
    for axes, number in zip(panels, numbers, strict=False):
        known = number.numbers == number.numbers  # NaN is not
        true, found = number.numbers[known], number.found[known]
        stride = max(1, math.ceil(len(true) / MOST_POINTS))
        axes.plot(true[::stride], found[::stride], ".", ms=3, alpha=0.4)
        ends = [float(true.min()), float(true.max())] if len(true) else [0.0, 1.0]
        axes.plot(ends, ends, color="0.4", lw=1)
        axes.set(xlabel="true", ylabel="predicted")
    save_figure(figure, path)


def _make_panels(names: Sequence[str], title: str) -> tuple[Any, list[Any]]:
    """Return a figure and its axes, one for each of the first MOST names."""
    count = max(1, min(len(names), MOST))
    across = min(ACROSS, count)
    down = math.ceil(count / across)
    figure = new_figure(SIDE * across, SIDE * down + 0.5)
    more = f" (the first {MOST} of {len(names)})" if len(names) > MOST else ""
    figure.suptitle(without_math(f"{title}{more}"), fontsize="medium")
    panels = list(figure.subplots(down, across, squeeze=False).flat)
    for index, axes in enumerate(panels):
        axes.grid(alpha=0.3)
        axes.set_visible(index < len(names))
    for index, (axes, name) in enumerate(zip(panels, names, strict=False)):
        axes.set_title(fit_name(name, NAME_WIDTH) or f"number {index + 1}", fontsize="small")
    return figure, panels


# ---- the reports ----


@dataclass(frozen=True)
class LabelResult:
    """The results of a label at its threshold, over the examples of which it is known. None without such examples."""

    name: str
    examples: int
    with_it: int
    average_precision: float | None
    threshold: float
    precision: float | None
    recall: float | None
    f1: float | None


@dataclass(frozen=True)
class LabelReport:
    """The results of labels, lowest average precision first, and those without examples last.

    Attributes:
        curves: Those of the labels that have examples, in the same order.
    """

    results: list[LabelResult]
    curves: list[LabelCurve]

    def describe(self) -> dict[str, Any]:
        known = [result.f1 for result in self.results if result.f1 is not None]
        mean = math.fsum(known) / len(known) if known else None
        return {"labels": [asdict(result) for result in self.results], "f1_at_thresholds": mean}

    def show(self) -> None:
        rows = [
            (
                result.name,
                f"{result.with_it} of {result.examples}",
                cell(result.average_precision, ".4f"),
                f"{result.threshold:.4f}",
                *(cell(value, ".4f") for value in (result.precision, result.recall, result.f1)),
            )
            for result in self.results[:SHOWN]
        ]
        titles = ("label", "examples", "average precision", "threshold", "precision", "recall", "F1")
        table("labels, lowest average precision first", titles, rows)
        if len(self.results) > SHOWN:
            say(f"... and {len(self.results) - SHOWN:,} more")

    def draw(self, title: str, folder: Path, end: str) -> list[Path]:
        """Draw precision against recall of each label."""
        picture = folder / f"labels{end}.png"
        draw_labels(self.curves, title, picture)
        return [picture]


@dataclass(frozen=True)
class NumberResult:
    """The errors of a number, over the examples of which it is known. None without such, and R2 without a spread."""

    name: str
    examples: int
    mae: float | None
    rmse: float | None
    r2: float | None


@dataclass(frozen=True)
class NumberReport:
    """The errors of numbers, the true values and the answers of the model, in the user's units."""

    results: list[NumberResult]
    numbers: list[Numbers]

    def describe(self) -> dict[str, Any]:
        return {"numbers": [asdict(result) for result in self.results]}

    def show(self) -> None:
        rows = [
            (result.name, f"{result.examples:,}", *(cell(it, ".6g") for it in (result.mae, result.rmse, result.r2)))
            for result in self.results
        ]
        table("numbers", ("number", "examples", "MAE", "RMSE", "R2"), rows)

    def draw(self, title: str, folder: Path, end: str) -> list[Path]:
        """Draw the answers of the model against the true values."""
        picture = folder / f"numbers{end}.png"
        draw_numbers(self.numbers, title, picture)
        return [picture]
