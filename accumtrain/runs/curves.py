"""Learning curves as a picture: of one run (results.png), or of several runs in the same axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Records = Sequence[Mapping[str, Any]]


def draw_curves(runs: Mapping[str, Records], path: Path) -> None:
    """Draws loss and accuracy against updates, side by side: training thin, test bold, a colour per run.

    Args:
        runs: name -> metric records, as metrics.jsonl holds them.
        path: the PNG file to write.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for axis, name in zip(axes, ("loss", "accuracy"), strict=True):
        for colour, (run, records) in enumerate(runs.items()):
            for split, style in (("train", {"lw": 0.8, "alpha": 0.5}), ("test", {"lw": 2, "marker": "."})):
                points = [(r["step"], r[name]) for r in records if r["split"] == split and r.get(name) is not None]
                if points:
                    axis.plot(*zip(*points, strict=True), color=f"C{colour % 10}", label=f"{run} {split}", **style)
        axis.set_xlabel("update")
        axis.set_ylabel(name)
        axis.grid(alpha=0.3)
    axes[0].set_yscale("log")
    if axes[1].get_legend_handles_labels()[0]:
        axes[1].legend(fontsize="small")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
