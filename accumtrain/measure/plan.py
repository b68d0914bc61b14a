"""job=plan: the memory of each micro-batch size under each memory policy, on the configured device.

With probes, one process measures the two smallest sizes of a policy. The line through them predicts the largest size
that fits, which is measured, too, as accum.steps=auto does. All other sizes are read off lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from accumtrain.config.schema import Config
from accumtrain.console import say, table
from accumtrain.devices.config import DEVICES
from accumtrain.measure.auto_steps import (
    COLUMNS,
    SmallestFunction,
    describe_limit,
    format_probe_row,
    search,
    sizes_of,
    tell_compiler,
)
from accumtrain.measure.probe import ProbeFunction, ProbeResult, probe, probe_smallest
from accumtrain.measure.search import doubled, on_lines
from accumtrain.registry import load
from accumtrain.report.pictures import new_figure, save_figure, scale_axis
from accumtrain.runs.folder import job_folder, result_file
from accumtrain.train.tell.remedies import with_each_policy


def plan_run(config: Config) -> dict[str, Any]:
    """Print a table of what fits, and return the content of plan.json. Nothing is trained."""
    plan: dict[str, Any] = load(DEVICES[config.device.kind].plan)(config)
    say("docs/batch.md tells whether you need accumulation at all")
    return plan


def plan_by_probes(config: Config) -> dict[str, Any]:
    """Probe, print a table, and draw plan.png. The trials of plan.json are fields of ProbeResult."""
    variants = with_each_policy(config)
    trials: list[ProbeResult] = []
    for index, variant in enumerate(variants, start=1):
        note = f" (policy {index} of {len(variants)})"
        trials += plan_policy(variant, partial(probe_smallest, note=note), partial(probe, note=note))
    limit = config.device.memory_limit_mb
    folder = job_folder(config)
    draw_plan(trials, limit, folder / "plan.png")
    lines = [(*format_probe_row(trial), "measured" if trial.measured else "line") for trial in trials]
    table(f"{describe_plan(config)} in {describe_limit(config)}", (*COLUMNS, "from"), lines)
    tell_compiler(trials)
    say(f"the same in {result_file(config)}, as a picture in {folder / 'plan.png'}")
    return plan_result(config, {"memory_limit_mb": limit}, trials)


def plan_policy(config: Config, smallest: SmallestFunction, attempt: ProbeFunction) -> list[ProbeResult]:
    """Return results of micro-batches, measured or on lines: up to the first that does not fit.

    Each is about twice the one before. Those that were measured are among them, and so is the largest that fits.
    """
    measured = search(config, smallest, attempt)
    fitting = [trial for trial in measured if trial.fits]
    if len(fitting) < 2:
        return measured
    trials = {trial.micro_batch: trial for trial in measured}
    sizes, largest = sizes_of(config, fitting[0]), fitting[-1].micro_batch
    too_large = [size for size in sizes if size > largest][:1]
    fits = {size for size in (*doubled(sizes), *trials) if size <= largest}
    return [trials.get(size) or _on_lines(config, fitting, size) for size in [*sorted(fits), *too_large]]


def _on_lines(config: Config, fitting: Sequence[ProbeResult], size: int) -> ProbeResult:
    """Return the result of a size that was not tried, on lines through those that fit.

    The size after the largest of these does not fit.
    """
    peaks = {trial.micro_batch: trial.peak_bytes for trial in fitting if trial.peak_bytes is not None}
    resident = {trial.micro_batch: trial.resident_bytes for trial in fitting if trial.resident_bytes is not None}
    first, largest = fitting[0], fitting[-1]
    assert first.replicas is not None
    return ProbeResult(
        first.memory,
        size,
        fits=size < largest.micro_batch,
        accum_steps=config.batch_size // (size * first.replicas),
        replicas=first.replicas,
        batch_norm=first.batch_norm,
        static_bytes=first.static_bytes,
        peak_bytes=int(on_lines(peaks, size)),
        peak_by_compiler=first.peak_by_compiler,
        expected_bytes=int(on_lines(resident, size)),
        measured=False,
    )


# ---- the content of plan.json, by probes or by a TPU's compiler ----


def plan_result(config: Config, within: dict[str, Any], trials: Sequence[Any]) -> dict[str, Any]:
    """Return the content of plan.json: `within` has limits by name, and trials are dataclasses."""
    return {
        "status": "completed",
        "model": config.model.label,
        "optimizer": config.optim.kind,
        "precision": config.precision,
        "batch_size": config.batch_size,
        **within,
        "trials": [asdict(trial) for trial in trials],
    }


def describe_plan(config: Config) -> str:
    ramp = ", for each batch of batch_ramp" if config.batch_ramp else ""
    return f"{config.model.label}, {config.optim.kind}, {config.precision}, batch_size={config.batch_size}{ramp}"


def draw_plan(trials: Sequence[ProbeResult], limit_mb: int | None, path: Path) -> None:
    """Draw tensors at the peak against the micro-batch, the limit dashed: a ring for a peak that is on a line."""
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


def _points(trials: Sequence[tuple[ProbeResult, float]]) -> tuple[list[int], list[float]]:
    """Return micro-batches, and MB at the peak."""
    return [trial.micro_batch for trial, _ in trials], [peak for _, peak in trials]
