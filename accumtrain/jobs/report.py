"""job=report: several runs side by side, as a table and as learning curves in one picture."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accumtrain.config.schema import Config
from accumtrain.console import format_bytes, format_seconds, say, table, warn
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.runs.curves import draw_curves
from accumtrain.runs.run import read_records, read_summary

COLUMNS = (
    "run",
    "status",
    "updates",
    "batch",
    "test loss",
    "test accuracy",
    "examples/s",
    "seconds",
    "activations",
    "resident",
)


def run(config: Config) -> dict[str, Any]:
    """Compares report.runs, or all runs in run.dir: prints a table, best first, and draws report.png.

    A run whose files are damaged is named and left out.

    Returns:
        status, and in `runs` the summary of each run, best first.

    Raises:
        ConfigError: a run is not there.
        CheckpointError: no run can be read.
    """
    directory = Path(config.run.dir)
    names = config.report.runs or sorted(path.parent.name for path in directory.glob("*/summary.json"))
    if not names:
        raise ConfigError(f"run.dir={directory}: holds no finished run to report")
    runs = _read_runs([directory / name for name in names])
    ranked = sorted(runs, key=_rank)
    table(f"{len(ranked)} runs in {directory}", COLUMNS, [_row(run) for run in ranked])
    picture = directory / "report.png"
    draw_curves({run.name: run.records for run in ranked}, picture)
    say(f"learning curves in {picture}")
    return {"status": "completed", "runs": {run.name: run.summary for run in ranked}}


@dataclass(frozen=True)
class _Reported:
    """A run as its files show it."""

    name: str
    summary: dict[str, Any]
    records: list[dict[str, Any]]


def _rank(run: _Reported) -> tuple[float, float]:
    """Smaller is better: the highest accuracy first, and of equal ones, or without any, the lowest loss."""
    accuracy, loss = (_number(run.summary, "best", name) for name in ("accuracy", "loss"))
    return -(accuracy or 0.0), math.inf if loss is None else loss


def _read_runs(paths: Sequence[Path]) -> list[_Reported]:
    runs = []
    for path in paths:
        try:
            runs.append(_Reported(path.name, _summary(path), read_records(path)))
        except CheckpointError as error:
            warn(f"{path.name} is left out: {error}")
    if not runs:
        raise CheckpointError(f"none of the {len(paths)} runs can be read; put back copies of their files")
    return runs


def _summary(path: Path) -> dict[str, Any]:
    summary = read_summary(path)
    if summary is None:
        raise ConfigError(f"report.runs: {path} holds no run with a summary.json; train it first")
    if not isinstance(summary.get("status"), str) or _number(summary, "step") is None:
        raise CheckpointError(f"{path / 'summary.json'} is not the summary of a training")
    return summary


def _row(run: _Reported) -> tuple[str, ...]:
    def shown(form: str | Callable[[float], str], *keys: str) -> str:
        value = _number(run.summary, *keys)
        if value is None:
            return "-"
        return format(value, form) if isinstance(form, str) else form(value)

    batch = (shown(".0f", key) for key in ("batch_size", "micro_batch_size", "accum_steps", "replicas"))
    return (
        run.name,
        run.summary["status"],
        shown(".0f", "step"),
        "{} = {} x {} x {}".format(*batch),
        shown(".4f", "test", "loss"),
        shown(".4f", "test", "accuracy"),
        shown(",.0f", "examples_per_second"),
        shown(format_seconds, "seconds"),
        _activations(run.summary),
        shown(format_bytes, "memory", "rss_peak_bytes"),
    )


def _activations(summary: dict[str, Any]) -> str:
    peak, static = (_number(summary, "memory", f"tensor_{kind}_bytes") for kind in ("peak", "static"))
    return "-" if peak is None or static is None else format_bytes(peak - static)


def _number(summary: Any, *keys: str) -> float | None:
    """The number at a key of nested mappings; None if there is none, or one that is not finite."""
    for key in keys:
        summary = summary.get(key) if isinstance(summary, dict) else None
    return summary if type(summary) in (int, float) and abs(summary) <= sys.float_info.max else None
