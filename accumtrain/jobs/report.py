"""job=report: several runs side by side, as a table and as learning curves in one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accumtrain.config.schema import Config
from accumtrain.console import format_bytes, format_seconds, say, table
from accumtrain.errors import ConfigError
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

    Returns:
        status, and in `runs` the summary of each run, best first.

    Raises:
        ConfigError: a run is not there.
    """
    directory = Path(config.run.dir)
    names = config.report.runs or sorted(path.parent.name for path in directory.glob("*/summary.json"))
    if not names:
        raise ConfigError(f"run.dir={directory}: holds no finished run to report")
    summaries = {name: _summary(directory / name) for name in names}
    ranked = sorted(names, key=lambda name: -((summaries[name]["test"] or {}).get("accuracy", -1.0)))
    table(f"{len(names)} runs in {directory}", COLUMNS, [_row(name, summaries[name]) for name in ranked])
    picture = directory / "report.png"
    draw_curves({name: read_records(directory / name) for name in ranked}, picture)
    say(f"learning curves in {picture}")
    return {"status": "completed", "runs": {name: summaries[name] for name in ranked}}


def _summary(path: Path) -> dict[str, Any]:
    summary = read_summary(path)
    if summary is None:
        raise ConfigError(f"report.runs: {path} holds no run with a summary.json; train it first")
    return summary


def _row(name: str, summary: dict[str, Any]) -> tuple[str, ...]:
    test, memory, speed = summary["test"], summary["memory"], summary["examples_per_second"]
    shape = f"{summary['micro_batch_size']} x {summary['accum_steps']} x {summary['replicas']}"
    return (
        name,
        summary["status"],
        str(summary["step"]),
        f"{summary['batch_size']} = {shape}",
        "-" if test is None else f"{test['loss']:.4f}",
        "-" if test is None else f"{test['accuracy']:.4f}",
        "-" if speed is None else f"{speed:,.0f}",
        format_seconds(summary["seconds"]),
        format_bytes(memory["tensor_peak_bytes"] - memory["tensor_static_bytes"]),
        format_bytes(memory["rss_peak_bytes"]),
    )
