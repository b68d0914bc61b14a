"""A confusion matrix as a picture: of few classes with names and counts, of many with a list of the worst pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accumtrain.runs.confusion import Confusion
from accumtrain.runs.curves import new_figure, save_figure
from accumtrain.runs.drawn_names import drawn_names

LABELLED = 30  # classes with names at the axes
LISTED = 30  # pairs in the list
CELL = 0.38  # inches
NAME_WIDTH = 24  # characters
MOST_CELLS = 250  # along a side; of more classes, the largest share of several cells is drawn
VISIBLE = 0.5  # exponent of the shares in the scale of colours, so that small ones can be seen


def draw_confusion(confusion: Confusion, title: str, path: Path) -> None:
    """Draws the share of each class that is taken for each class: a row is a true class, and sums to 1.

    Args:
        path: the PNG file, which is replaced as a whole.

    Raises:
        CheckpointError: the file can't be written; it is unchanged then.
    """
    draw = _draw_named if len(confusion.names) <= LABELLED else _draw_with_list
    save_figure(draw(confusion, title.replace("$", r"\$")), path)


def _draw_named(confusion: Confusion, title: str) -> Any:
    classes, names = len(confusion.names), drawn_names(confusion.names, NAME_WIDTH)
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
    names = drawn_names(confusion.names, NAME_WIDTH)
    head = ("count (share)", "true class", "predicted class")
    pairs = [
        (f"{each.count} ({each.share:.0%})", names[each.true], names[each.predicted])
        for each in confusion.confused(LISTED)
    ]
    text.axis("off")
    text.set(xlim=(0, 1), ylim=(LISTED + 1, 0))
    text.set_title("confused most", fontsize="medium")
    for line, cells in enumerate((head, *(pairs or [("none", "", "")]))):
        for left, cell in zip((0, 0.24, 0.62), cells, strict=True):
            text.text(left, line + 0.5, cell, va="center", fontsize="small", weight="normal" if line else "bold")
    return figure


def _image(figure: Any, axes: Any, shares: Any, title: str, extent: tuple[float, ...] | None = None) -> None:
    from matplotlib.colors import PowerNorm

    image = axes.imshow(shares, cmap="Blues", norm=PowerNorm(VISIBLE, 0, 1), extent=extent, interpolation="nearest")
    bar = figure.colorbar(image, ax=axes, shrink=0.8, aspect=30, label="share of the true class")
    bar.set_ticks([0, 0.01, 0.05, 0.1, 0.25, 0.5, 1], labels=["0", "1 %", "5 %", "10 %", "25 %", "50 %", "100 %"])
    axes.set(xlabel="predicted class", ylabel="true class")
    axes.set_title(title, fontsize="medium")


def _shares(confusion: Confusion) -> Any:
    """float64 [classes, classes]; 0 in the row of a class without examples."""
    import numpy as np

    counts = np.array(confusion.counts, np.float64)
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)


def _largest_of_blocks(shares: Any) -> Any:
    """At most MOST_CELLS along a side: each the largest share of a block of classes."""
    import numpy as np

    width = -(-len(shares) // MOST_CELLS)
    starts = np.arange(0, len(shares), width)
    return np.maximum.reduceat(np.maximum.reduceat(shares, starts, axis=0), starts, axis=1)
