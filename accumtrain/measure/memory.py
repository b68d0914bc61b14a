"""job=memory: the memory of each policy at the configured micro-batch, as a table and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accumtrain.config.jobs import cell
from accumtrain.config.schema import Config
from accumtrain.console import format_bytes, say, table
from accumtrain.devices.config import DEVICES, DeviceEntry
from accumtrain.errors import ConfigError
from accumtrain.measure.auto_steps import format_speed, tell_compiler
from accumtrain.measure.plan import describe_plan, plan_result
from accumtrain.measure.probe import ProbeResult, find_micro_batch, probe
from accumtrain.report.pictures import new_figure, save_figure, without_math
from accumtrain.runs.folder import job_folder, result_file
from accumtrain.train.tell.remedies import with_each_policy

COLUMNS = ("memory", "peak", "state", "activations", "examples/s", "fits")
KINDS = (
    ("state: weights, gradients, optimizer", "static_bytes", "0.55"),
    ("activations", "activation_bytes", "C0"),
)
MB = 2**20


def check_memory(config: Config) -> None:
    """Raise ConfigError if there is no micro-batch to compare at, or nothing to measure on."""
    if config.accum.is_auto:
        raise ConfigError(
            "accum.steps=auto: job=memory compares at one micro-batch, so give a number; job=plan tries several"
        )
    if DEVICES[config.device.kind].plan != DeviceEntry.plan:
        raise ConfigError(
            f"device={config.device.kind}: job=memory measures, and this device is only compiled for; use job=plan"
        )


def compare_policies(config: Config) -> dict[str, Any]:
    """Probe each policy in a process of its own, print a table, and draw memory.png. Nothing is trained.

    Returns:
        The content of memory.json: batch_size, memory_limit_mb, micro_batch, trials (fields of ProbeResult).
    """
    variants = with_each_policy(config)
    trials = [
        probe(variant, find_micro_batch(variant), f" ({number} of {len(variants)})")
        for number, variant in enumerate(variants, 1)
    ]
    micro_batch = next((trial for trial in trials if trial.replicas), trials[0]).micro_batch  # as counted, if one ran
    what = f"{describe_plan(config)}, micro-batch {micro_batch}"
    picture = job_folder(config) / "memory.png"
    draw_memory(trials, what, picture)
    table(what, COLUMNS, [_row(trial) for trial in trials])
    tell_compiler(trials)
    _tell_shares(trials)
    say(f"the same in {result_file(config)}, as a picture in {picture}")
    within = {"memory_limit_mb": config.device.memory_limit_mb, "micro_batch": micro_batch}
    return plan_result(config, within, trials)


def _row(trial: ProbeResult) -> tuple[str, ...]:
    sizes = (trial.peak_bytes, trial.static_bytes, trial.activation_bytes)
    return (
        trial.memory,
        *(cell(size, format_bytes) for size in sizes),
        format_speed(trial),
        "yes" if trial.fits else "no",
    )


def _tell_shares(trials: Sequence[ProbeResult]) -> None:
    """Say how much of the stored activations the other policies take."""
    activations = {trial.memory: trial.activation_bytes for trial in trials}
    stored = activations.pop("store", None)
    for memory, size in activations.items():
        if stored and size is not None:
            say(f"model.memory={memory} takes {size / stored:.0%} of the memory of stored activations")


def draw_memory(trials: Sequence[ProbeResult], title: str, path: Path) -> None:
    """Draw a bar for each trial that fits: state and activations at the peak, one after the other."""
    figure = new_figure(8, 1.6 + 0.55 * len(trials))
    axes = figure.subplots()
    indices = range(len(trials))
    left = [0.0] * len(trials)
    for label, kind, colour in KINDS:
        sizes = [(getattr(trial, kind) or 0) / MB for trial in trials]
        axes.barh(indices, sizes, left=left, height=0.6, color=colour, label=label)
        left = [begin + size for begin, size in zip(left, sizes, strict=True)]
    for index, end, trial in zip(indices, left, trials, strict=True):
        axes.annotate(_total(trial), (end, index), (4, 0), textcoords="offset points", va="center")
    axes.set_yticks(indices, [trial.memory for trial in trials])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.18 * max(left) or 1)  # room for the number behind the longest bar
    axes.set_xlabel("tensors at the peak, MB")
    axes.set_title(without_math(title), fontsize="medium")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=len(KINDS), frameon=False, fontsize="small")
    save_figure(figure, path)


def _total(trial: ProbeResult) -> str:
    if trial.peak_bytes is None:
        return "not counted on this device" if trial.fits else "does not fit"
    return format_bytes(trial.peak_bytes)
