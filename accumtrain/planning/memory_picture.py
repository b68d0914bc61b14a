"""Bars of what the memory policies of a model take at the peak: state, activations, workspace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accumtrain.console import format_bytes
from accumtrain.planning.probe import Trial
from accumtrain.runs.curves import new_figure, save_figure

KINDS = (
    ("state: weights, gradients, optimizer", "static_bytes", "0.55"),
    ("activations", "activation_bytes", "C0"),
    ("workspace of kernels", "workspace_bytes", "0.85"),
)
MB = 2**20


def draw_memory(trials: Sequence[Trial], title: str, path: Path) -> None:
    """Draws a bar for each trial that fits, its kinds of memory one after the other.

    Args:
        path: the PNG file, which is replaced as a whole.

    Raises:
        CheckpointError: the file can't be written; it is unchanged then.
    """
    figure = new_figure(8, 1.6 + 0.55 * len(trials))
    axes = figure.subplots()
    places = range(len(trials))
    left = [0.0] * len(trials)
    for label, kind, colour in KINDS:
        sizes = [(getattr(trial, kind) or 0) / MB for trial in trials]
        axes.barh(places, sizes, left=left, height=0.6, color=colour, label=label)
        left = [begin + size for begin, size in zip(left, sizes, strict=True)]
    for place, end, trial in zip(places, left, trials, strict=True):
        axes.annotate(_total(trial), (end, place), (4, 0), textcoords="offset points", va="center")
    _finish(axes, [trial.memory for trial in trials], title, max(left))
    figure.legend(loc="outside lower center", ncols=len(KINDS), frameon=False, fontsize="small")
    save_figure(figure, path)


def _total(trial: Trial) -> str:
    if trial.peak_bytes is None:
        return "not counted on this device" if trial.fits else "does not fit"
    return format_bytes(trial.peak_bytes)


def _finish(axes: Any, names: Sequence[str], title: str, longest: float) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.18 * longest or 1)  # room for the number behind the longest bar
    axes.set_xlabel("tensors at the peak, MB")
    axes.set_title(title.replace("$", r"\$"), fontsize="medium")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
