"""Learning curves as a picture: of one run (results.png), or of several runs in the same axes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accumtrain.runs.files import disk_errors

NO_METRICS = ("step", "epoch", "split", "loss", "examples", "examples_per_second", "seconds")  # of an evaluation
MOST_METRICS = 3

Records = Sequence[Mapping[str, Any]]


def draw_curves(runs: Mapping[str, Records], path: Path) -> None:
    """Draws loss and metrics against updates, side by side: training thin, test bold, a colour per run.

    Args:
        runs: name -> metric records, as metrics.jsonl holds them. Values that are no numbers are left out.
        path: the PNG file, which is replaced as a whole; a link of this name is replaced, not followed.

    Raises:
        CheckpointError: the file can't be written; it is unchanged then.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = _drawn(runs.values())
    figure, grid = pyplot.subplots(1, len(names), figsize=(5.5 * len(names), 4), layout="constrained", squeeze=False)
    axes = grid[0]
    for axis, name in zip(axes, names, strict=True):
        for colour, (run, records) in enumerate(runs.items()):
            for split, style in (("train", {"lw": 0.8, "alpha": 0.5}), ("test", {"lw": 2, "marker": "."})):
                points = [(r["step"], r[name]) for r in records if r["split"] == split and _is_point(r, name)]
                if points:
                    label = f"{run} {split}".replace("$", r"\$")  # between two of them stands a formula
                    axis.plot(*zip(*points, strict=True), color=f"C{colour % 10}", label=label, **style)
        axis.set_xlabel("update")
        axis.set_ylabel(name)
        axis.grid(alpha=0.3)
    axes[0].set_yscale("log")
    if axes[-1].get_legend_handles_labels()[0]:
        axes[-1].legend(fontsize="small")
    try:
        save_figure(figure, path)
    finally:
        pyplot.close(figure)


def _drawn(runs: Iterable[Records]) -> list[str]:
    """Loss and at most MOST_METRICS metrics: what evaluations have measured."""
    tested = [record for records in runs for record in records if record["split"] == "test"]
    found = dict.fromkeys(name for record in tested for name in record if name not in NO_METRICS)
    return ["loss", *list(found)[:MOST_METRICS]]


def _is_point(record: Mapping[str, Any], name: str) -> bool:
    values = (record.get("step"), record.get(name))
    return all(isinstance(value, int | float) and abs(value) <= sys.float_info.max for value in values)


def save_figure(figure: Any, path: Path) -> None:
    """Writes a PNG file, which is replaced as a whole. Raises CheckpointError if that fails; it is unchanged then."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    with disk_errors(path):
        unfinished.unlink(missing_ok=True)
        try:
            with unfinished.open("xb") as file:
                figure.savefig(file, format="png", dpi=120)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
