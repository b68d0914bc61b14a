"""Learning curves, and the parts that all pictures share: figures, axes, names of runs and classes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from accumtrain.console import break_name
from accumtrain.fields import NOISE, is_finite_number
from accumtrain.runs.files import replacing

STEPS = {2: (1,), 10: (1, 2, 5)}  # multiples of the powers of a base that get a number
MANY_POWERS = 3  # in a range of so many, only powers get a number
KEY_MARKS = (".", "_")  # a word of a derived name with one of them is a key, which must stay with its value
TRAIN, TEST = "train", "test"  # the split of the updates themselves, and the one that is measured last
NOT_METRICS = ("step", "epoch", "split", "loss", "examples", "examples_per_second", "seconds")  # of an evaluation
MOST_METRICS = 3
NOISE_SCALE = NOISE[0]
BASES = {"loss": 10, NOISE_SCALE: 2}  # of logarithmic axes
COLOURS = 10
NAMED = 2 * COLOURS  # runs with a colour and a name: solid, then dashed
OTHERS = "0.75"  # the grey of the other runs
NAME_WIDTH = 44  # characters of a line of the legend
LEGEND_INCHES = 0.08  # of a character

Records = Sequence[Mapping[str, Any]]


# ---- learning curves, of one run (results.png) or of several in the same axes ----


def draw_curves(runs: Mapping[str, Records], path: Path) -> None:
    """Draw loss, metrics and the noise scale against updates, side by side: training thin, evaluations bold.

    The first NAMED runs have a colour and stand in a legend beside the axes. The others are grey. Of more than COLOURS
    runs that were evaluated only the evaluations are drawn.

    Args:
        runs: name -> records of metrics.jsonl, best first. Values that are not numbers are left out.
    """
    from matplotlib.lines import Line2D

    evaluated = {name: [record for record in records if record["split"] != TRAIN] for name, records in runs.items()}
    if len(runs) > COLOURS and any(evaluated.values()):
        runs = evaluated
    names = list_curves(runs.values(), most=1 + MOST_METRICS)
    legend = _legend(runs)
    lines = sum(1 + text.count("\n") for _, text in legend)
    width = 5.5 * len(names) + 1 + LEGEND_INCHES * NAME_WIDTH
    figure = new_figure(width, height=max(4, 0.19 * lines + 0.5))
    grid = figure.subplots(1, len(names), squeeze=False)
    for axes, name in zip(grid[0], names, strict=True):
        drawn = [value for run in reversed(list(enumerate(runs.values()))) for value in _draw(axes, name, *run)]
        axes.set_xlabel("update")
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
        if name in BASES:
            scale_axis(axes, "y", drawn, BASES[name])
    handles = [Line2D([], [], **style) for style, _ in legend]
    figure.legend(handles, [text for _, text in legend], loc="outside right upper", fontsize="small", frameon=False)
    save_figure(figure, path)


def list_curves(runs: Collection[Records], most: int | None = None) -> list[str]:
    """Return the first `most` of `list_metrics`, and the noise scale if any run has measured it."""
    noises = (record.get(NOISE_SCALE) for records in runs for record in records)
    return [*list_metrics(runs)[:most], *([NOISE_SCALE] if any(map(is_finite_number, noises)) else [])]


def list_metrics(runs: Iterable[Records]) -> list[str]:
    """Return the loss and the metrics that evaluations of any run have measured."""
    evaluated = (record for records in runs for record in records if record["split"] != TRAIN)
    found = dict.fromkeys(name for record in evaluated for name in record if name not in NOT_METRICS)
    return ["loss", *found]


def _draw(axes: Any, name: str, index: int, records: Records) -> list[float]:
    """Draw the curves of a metric of the run `index`. Return their values."""
    drawn = []
    for split in dict.fromkeys(str(record["split"]) for record in records):
        found: list[Any] = [(r.get("step"), r.get(name)) for r in records if str(r["split"]) == split]
        if points := [point for point in found if all(map(is_finite_number, point))]:
            axes.plot(*zip(*points, strict=True), **_style(index), **_weight(split))
            drawn += [value for _, value in points]
    return drawn


def _style(index: int) -> dict[str, Any]:
    if index >= NAMED:
        return {"color": OTHERS, "ls": "-"}
    return {"color": f"C{index % COLOURS}", "ls": "-" if index < COLOURS else "--"}


def _weight(split: str) -> dict[str, Any]:
    if split == TRAIN:
        return {"lw": 0.8, "alpha": 0.5}
    return {"lw": 1.8, "marker": "*", "ms": 8} if split == TEST else {"lw": 1.8, "marker": ".", "ms": 5}


def _legend(runs: Mapping[str, Records]) -> list[tuple[dict[str, Any], str]]:
    """Return style and text of each entry: the splits of one run, or the names of several."""
    if len(runs) == 1:
        (records,) = runs.values()
        return [(_style(0) | _weight(split), split) for split in dict.fromkeys(str(r["split"]) for r in records)]
    beginning, short = shorten_run_names(list(runs))
    title = [({"lw": 0}, _text(f"{beginning}..."))] if beginning else []
    named = [(_style(index) | {"lw": 2}, _text(label)) for index, label in enumerate(short[:NAMED])]
    others = [(_style(NAMED) | {"lw": 2}, f"{len(runs) - NAMED} others")] if len(runs) > NAMED else []
    return [*title, *named, *others]


def _text(name: str) -> str:
    return without_math(break_name(name, NAME_WIDTH))


# ---- figures, axes and names, for all pictures ----


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of matplotlib, of this size in inches. It draws without a display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    """Write a PNG file, which is replaced as a whole. A link of this name is replaced, not followed.

    Raises:
        CheckpointError: the file can't be written. It is unchanged then.
    """
    with replacing(path) as unfinished, unfinished.open("xb") as file:
        figure.savefig(file, format="png", dpi=120)


def scale_axis(axes: Any, letter: str, values: Sequence[float], base: int) -> None:
    """Make the axis `letter` (x or y) of matplotlib's `axes` logarithmic if `values` span a power of `base`.

    Otherwise, and with values of zero or less, it stays linear.
    """
    if not values or min(values) <= 0 or max(values) / min(values) < base:
        return
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    getattr(axes, f"set_{letter}scale")("log", base=base)
    axis = getattr(axes, f"{letter}axis")
    powers = math.log(max(values), base) - math.log(min(values), base)
    axis.set_major_locator(LogLocator(base=base, subs=STEPS[base] if powers < MANY_POWERS else (1,)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def shorten_run_names(names: Sequence[str]) -> tuple[str, list[str]]:
    """Return the common beginning of `names`, and the rest of each: at least a word. Keys keep their values.

    An example is `("lenet5-digits-", ["batch_size-32", "batch_size-64"])`. The beginning of a single name is empty.
    """
    words = [name.split("-") for name in names]
    common = 0
    while len(names) > 1 and all(len(name) > common + 1 and name[common] == words[0][common] for name in words):
        if any(mark in words[0][common] for mark in KEY_MARKS):
            break
        common += 1
    return "".join(f"{word}-" for word in words[0][:common]), ["-".join(name[common:]) for name in words]


def without_math(text: str) -> str:
    """Escape dollars, between two of which matplotlib reads a formula."""
    return text.replace("$", r"\$")


def fit_class_names(names: Sequence[str], width: int) -> list[str]:
    """Return the names cut to `width` characters. A name that the font can't show becomes "class" and its number."""
    return [fit_name(name, width) or f"class {number}" for number, name in enumerate(names)]


def fit_name(name: str, width: int) -> str | None:
    """Return a name cut to `width` characters, or None if the font can't show it.

    The middle is cut out, because long names often begin or end alike.
    """
    if not name.strip() or not all(_font().get_char_index(ord(character)) for character in name):
        return None
    half = (width - 3) // 2
    return without_math(name if len(name) <= width else f"{name[:half]}...{name[-half:]}")


@cache
def _font() -> Any:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return get_font(findfont(FontProperties()))
