"""The report of job=evaluate about classes: confusions and the worst mistakes, and their pictures (`save_figure`)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from accumtrain.config.jobs import cell
from accumtrain.console import say, table
from accumtrain.report.pictures import fit_class_names, fit_name, new_figure, save_figure, without_math
from accumtrain.runs.files import disk_errors

CONFUSION, MISTAKES = "confusion", "mistakes"  # pictures, without their ending
SHOWN = 15  # classes that are printed
PAIRS = 100  # that are written down
LABELLED = 30  # classes with names at the axes; of more, a list has the worst pairs
LISTED = 30  # pairs in the list
CELL = 0.38  # inches
NAME_WIDTH = 24  # characters
MOST_CELLS = 250  # along a side; of more classes, the largest share of several cells is drawn
VISIBLE = 0.5  # exponent of the shares in the scale of colours, so that small ones can be seen
ACROSS = 6  # images in a row of the sheet
SHEET_NAME_WIDTH = 20  # characters
FILE_WIDTH = 30  # characters of the name of an image's file
SMALL = 96  # pixels of a side, up to which every pixel is drawn as a square


@dataclass(frozen=True)
class ClassResult:
    """The results of one class.

    `accuracy`: the share of its examples that are taken for it (recall), None without examples. `precision`: the share
    of the examples taken for it that are of it, None if there are none.
    """

    name: str
    examples: int
    accuracy: float | None
    precision: float | None


@dataclass(frozen=True)
class Pair:
    """Two classes, by number. `count` examples of one, a `share` of all that it has, are taken for the other."""

    true: int
    predicted: int
    count: int
    share: float


@dataclass(frozen=True)
class Confusion:
    """`counts[i][j]` examples of class i are taken for class j."""

    names: list[str]
    counts: list[list[int]]

    @cached_property
    def examples(self) -> list[int]:
        return [sum(row) for row in self.counts]

    @property
    def classes(self) -> list[ClassResult]:
        """The classes, lowest accuracy first. Classes without examples come last."""
        taken = [sum(column) for column in zip(*self.counts, strict=True)]
        results = [
            ClassResult(name, examples, _share(row[number], examples), _share(row[number], taken[number]))
            for number, (name, row, examples) in enumerate(zip(self.names, self.counts, self.examples, strict=True))
        ]
        return sorted(results, key=lambda it: (math.inf if it.accuracy is None else it.accuracy, -it.examples))

    def confused(self, most: int) -> list[Pair]:
        """Return the `most` pairs of different classes with the highest counts, and of equal ones with the shares."""
        wrong = (
            (count, count / self.examples[true], -true, -predicted)
            for true, row in enumerate(self.counts)
            for predicted, count in enumerate(row)
            if count and true != predicted
        )
        return [Pair(-true, -predicted, count, share) for count, share, true, predicted in heapq.nlargest(most, wrong)]


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


# ---- the picture of the matrix ----


def draw_confusion(confusion: Confusion, title: str, path: Path) -> None:
    """Draw the share of each class that is taken for each class. A row is a true class, and sums to 1."""
    draw = _draw_named if len(confusion.names) <= LABELLED else _draw_with_list
    save_figure(draw(confusion, without_math(title)), path)


def _draw_named(confusion: Confusion, title: str) -> Any:
    classes, names = len(confusion.names), fit_class_names(confusion.names, NAME_WIDTH)
    side = max(2.0, CELL * classes)
    margin = 1.2 + 0.08 * max(map(len, names))
    figure = new_figure(side + margin + 0.8, side + margin)
    axes = figure.subplots()
    shares = _shares(confusion)
    _image(figure, axes, shares, title)
    axes.set_xticks(range(classes), names, rotation=90, fontsize="small")
    axes.set_yticks(range(classes), names, fontsize="small")
    longest = max(len(str(count)) for row in confusion.counts for count in row)
    points = min(9.0, 72 * 1.3 * side / classes / longest)
    for true, row in enumerate(confusion.counts):
        for predicted, count in enumerate(row):
            if count:
                colour = "white" if shares[true, predicted] > 0.4 else "black"
                axes.text(predicted, true, str(count), ha="center", va="center", color=colour, fontsize=points)
    return figure


def _draw_with_list(confusion: Confusion, title: str) -> Any:
    end = len(confusion.names) - 0.5
    figure = new_figure(13, 7)
    axes, text = figure.subplots(1, 2, width_ratios=(7, 5))
    _image(figure, axes, _largest_of_blocks(_shares(confusion)), title, (-0.5, end, end, -0.5))
    names = fit_class_names(confusion.names, NAME_WIDTH)
    head = ("count (share)", "true class", "predicted class")
    pairs = [
        (f"{pair.count} ({pair.share:.0%})", names[pair.true], names[pair.predicted])
        for pair in confusion.confused(LISTED)
    ]
    text.axis("off")
    text.set(xlim=(0, 1), ylim=(LISTED + 1, 0))
    text.set_title("confused most", fontsize="medium")
    for line, cells in enumerate((head, *(pairs or [("none", "", "")]))):
        for left, shown in zip((0, 0.24, 0.62), cells, strict=True):
            text.text(left, line + 0.5, shown, va="center", fontsize="small", weight="normal" if line else "bold")
    return figure


def _image(figure: Any, axes: Any, shares: Any, title: str, extent: tuple[float, ...] | None = None) -> None:
    from matplotlib.colors import PowerNorm

    image = axes.imshow(shares, cmap="Blues", norm=PowerNorm(VISIBLE, 0, 1), extent=extent, interpolation="nearest")
    bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=30, label="share of the true class")
    bar.set_ticks([0, 0.01, 0.05, 0.1, 0.25, 0.5, 1], labels=["0", "1 %", "5 %", "10 %", "25 %", "50 %", "100 %"])
    axes.set(xlabel="predicted class", ylabel="true class")
    axes.set_title(title, fontsize="medium")


def _shares(confusion: Confusion) -> Any:
    """Return shares, float64 [classes, classes]. They are 0 in the row of a class without examples."""
    import numpy as np

    counts = np.array(confusion.counts, np.float64)
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)


def _largest_of_blocks(shares: Any) -> Any:
    """Return at most MOST_CELLS along a side: the largest share of each block of classes."""
    import numpy as np

    width = -(-len(shares) // MOST_CELLS)
    starts = np.arange(0, len(shares), width)
    return np.maximum.reduceat(np.maximum.reduceat(shares, starts, axis=0), starts, axis=1)


# ---- the sheet of the worst mistakes ----


@dataclass(frozen=True)
class Mistake:
    """An example that is taken for another class.

    `index`: that of the example in its split. `label`, `predicted`: numbers of classes. `loss`: its cross-entropy.
    `probability`: the probability of the predicted class.
    """

    index: int
    label: int
    predicted: int
    loss: float
    probability: float

    @property
    def label_probability(self) -> float:
        return math.exp(-self.loss)


def draw_mistakes(
    images: Sequence[Any], mistakes: Sequence[Mistake], files: Sequence[Path], class_names: Sequence[str], path: Path
) -> None:
    """Draw the images as a sheet, each with its true and its predicted class and the probability of both.

    Args:
        images: n arrays, float [height, width, channels], 0..1. n is at least 1, and channels is 1 or 3.
        files: the file of each image, whose name is shown; empty if the images have none of their own.
    """
    names = fit_class_names(class_names, SHEET_NAME_WIDTH)
    titles = [
        f"true: {names[mistake.label]} ({mistake.label_probability:.2g})\n"
        f"predicted: {names[mistake.predicted]} ({mistake.probability:.2g})"
        for mistake in mistakes
    ]
    if files:
        shown = [fit_name(file.name, FILE_WIDTH) or "" for file in files]
        titles = [f"{name}\n{title}" for name, title in zip(shown, titles, strict=True)]
    down = -(-len(mistakes) // ACROSS)
    figure = new_figure(2 * ACROSS, 2.5 * down)
    grid = figure.subplots(down, ACROSS, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for axes, image, title in zip(grid.flat, images, titles, strict=False):  # the last row may not be full
        smooth = "antialiased" if max(image.shape[:2]) > SMALL else "nearest"
        axes.imshow(image[..., 0] if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=1, interpolation=smooth)
        axes.set_title(title, fontsize=7.5, loc="left")
    save_figure(figure, path)


# ---- the report ----


@dataclass(frozen=True)
class ClassReport:
    """The confusions of classes, and the mistakes with the highest loss, highest first.

    Attributes:
        files: The file of each of the mistakes; empty if the examples have none of their own.
        images: The examples of the mistakes, float [height, width, channels], 0..1; None if they can't be seen.
    """

    confusion: Confusion
    mistakes: list[Mistake]
    files: Sequence[Path] = ()
    images: Sequence[Any] | None = None

    def describe(self) -> dict[str, Any]:
        """Return classes (lowest accuracy first), confused (pairs) and mistakes."""
        names, pairs = self.confusion.names, self.confusion.confused(PAIRS)
        mistakes = [_named(asdict(mistake), names, "label", "predicted") for mistake in self.mistakes]
        if self.files:
            mistakes = [mistake | {"file": str(file)} for mistake, file in zip(mistakes, self.files, strict=True)]
        return {
            "classes": [asdict(result) for result in self.confusion.classes],
            "confused": [_named(asdict(pair), names, "true", "predicted") for pair in pairs],
            "mistakes": mistakes,
        }

    def show(self) -> None:
        classes = self.confusion.classes
        rows = [
            (result.name, f"{result.examples}", cell(result.accuracy, ".4f"), cell(result.precision, ".4f"))
            for result in classes[:SHOWN]
        ]
        table("classes, lowest accuracy first", ("class", "examples", "accuracy", "precision"), rows)
        if len(classes) > SHOWN:
            say(f"... and {len(classes) - SHOWN:,} more")

    def draw(self, title: str, folder: Path, end: str) -> list[Path]:
        """Draw the confusion matrix and the worst mistakes."""
        matrix, sheet = (folder / f"{name}{end}.png" for name in (CONFUSION, MISTAKES))
        draw_confusion(self.confusion, title, matrix)
        if self.images is None:
            return [matrix]
        if self.mistakes:
            draw_mistakes(self.images, self.mistakes, self.files, self.confusion.names, sheet)
            return [matrix, sheet]
        with disk_errors(sheet):
            sheet.unlink(missing_ok=True)  # that of an earlier evaluation
        say("no mistakes")
        return [matrix]


def _named(record: dict[str, Any], names: Sequence[str], *keys: str) -> dict[str, Any]:
    return record | {key: names[record[key]] for key in keys}
