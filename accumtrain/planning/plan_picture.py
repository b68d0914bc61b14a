"""The picture of job=plan: memory against micro-batch, a line for each memory policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from accumtrain.planning.probe import Trial
from accumtrain.runs.axis_scale import scale_axis
from accumtrain.runs.curves import new_figure, save_figure


def draw(trials: Sequence[Trial], limit_mb: int | None, path: Path) -> None:
    """Draws tensors at the peak against the micro-batch, the limit dashed.

    A measured peak is a filled point, one on a line a ring.

    Raises:
        CheckpointError: the file can't be written.
    """
    figure = new_figure(7, 4.5)
    axis = figure.subplots()
    drawn = [(trial, trial.peak_bytes / 2**20) for trial in trials if trial.peak_bytes]
    for memory in dict.fromkeys(trial.memory for trial, _ in drawn):
        of_policy = [(trial, peak) for trial, peak in drawn if trial.memory == memory]
        (line,) = axis.plot(*_points(of_policy), label=memory)
        for measured, face in ((True, line.get_color()), (False, "white")):
            shown = [(trial, peak) for trial, peak in of_policy if trial.measured == measured]
            axis.plot(*_points(shown), ls="", marker="o", color=line.get_color(), mfc=face)
    if limit_mb is not None:
        axis.axhline(limit_mb, color="black", ls="--", lw=1, label="limit")
    if any(not trial.measured for trial, _ in drawn):
        axis.plot([], [], ls="", marker="o", color="0.5", mfc="white", label="on a line")
        axis.plot([], [], ls="", marker="o", color="0.5", label="measured")
    scale_axis(axis, "x", [trial.micro_batch for trial, _ in drawn], base=2)
    scale_axis(axis, "y", [*(peak for _, peak in drawn), *([] if limit_mb is None else [limit_mb])], base=2)
    if drawn:
        axis.set_xticks(sorted({trial.micro_batch for trial, _ in drawn}))
    axis.set_xlabel("micro-batch")
    axis.set_ylabel("tensors at the peak, MB")
    axis.grid(alpha=0.3)
    if axis.get_legend_handles_labels()[0]:
        axis.legend()
    save_figure(figure, path)


def _points(trials: Sequence[tuple[Trial, float]]) -> tuple[list[int], list[float]]:
    """Micro-batches, and MB at the peak."""
    return [trial.micro_batch for trial, _ in trials], [peak for _, peak in trials]
