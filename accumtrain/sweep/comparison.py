"""The jobs of a sweep side by side: that they are distinct before, and the table that ranks them after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from accumtrain.config import Config
from accumtrain.console import format_bytes, format_seconds, table
from accumtrain.errors import ConfigError
from accumtrain.runs import write_json
from accumtrain.sweep.outcome import Outcome


def check_distinct(configs: Sequence[Config]) -> None:
    """Raises ConfigError if two jobs of a sweep would train in one folder."""
    names = [config.run.name for config in configs if config.job == "train"]
    shared = next((name for name in names if names.count(name) > 1), None)
    if shared is not None:
        raise ConfigError(
            f"run.name={shared}: {names.count(shared)} jobs of the sweep would train in one folder; "
            "leave run.name out, each job then gets a name of its own"
        )


def report(outcomes: Sequence[Outcome]) -> None:
    """Shows the runs, best first, and writes them to sweep.json beside the runs."""
    ranked = sorted(outcomes, key=_rank)
    swept = _swept_keys(outcomes)
    columns: dict[str, Column] = {}
    for job in dict.fromkeys(outcome.job for outcome in outcomes):
        columns |= COLUMNS.get(job, {})
    rows = [_row(outcome, swept, columns.values()) for outcome in ranked]
    table(f"{len(ranked)} runs, best first", [*swept, "status", *columns], rows)
    records = [_record(each) for each in ranked]
    run_dir = next((Path(each.path).parent for each in outcomes if each.path), None)
    if run_dir is not None and run_dir.is_dir():  # else no run began
        write_json(run_dir / "sweep.json", records)


def _record(outcome: Outcome) -> dict[str, Any]:
    return {
        "overrides": outcome.overrides,
        "path": outcome.path,
        "job": outcome.job,
        "exit_code": outcome.exit_code,
        "status": outcome.status,
        "objective": outcome.objective,
        "summary": outcome.summary,
    }


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """That of the first job that failed, 0 if none did."""
    return next((outcome.exit_code for outcome in outcomes if outcome.exit_code), 0)


def _rank(outcome: Outcome) -> tuple[bool, float, float, float]:
    """Failed ones last; then test accuracy, test loss, and the speed a benchmark found."""
    accuracy, loss = outcome.test("accuracy"), outcome.test("loss")
    return (
        outcome.exit_code != 0,
        float("inf") if accuracy is None else -accuracy,
        float("inf") if loss is None else loss,
        -(outcome.images_per_second or 0.0),
    )


def _swept_keys(outcomes: Sequence[Outcome]) -> list[str]:
    """The keys whose values differ between jobs, in the order of the command."""
    jobs = [_values(outcome) for outcome in outcomes]
    keys = dict.fromkeys(key for job in jobs for key in job)
    return [key for key in keys if len({job.get(key) for job in jobs}) > 1]


def _values(outcome: Outcome) -> dict[str, str]:
    return dict(override.partition("=")[::2] for override in outcome.overrides)


def _row(outcome: Outcome, swept: Sequence[str], columns: Iterable[Column]) -> list[str]:
    values = _values(outcome)
    measured = (_shown(outcome.summary, *column) for column in columns)
    return [*(values.get(key, "-") for key in swept), outcome.status, *measured]


def _shown(summary: Any, key: str, form: str | Callable[[Any], str]) -> str:
    """The value at a dotted key, "-" where there is none."""
    for name in key.split("."):
        summary = (summary or {}).get(name)
    if summary is None:
        return "-"
    return format(summary, form) if isinstance(form, str) else form(summary)


Column = tuple[str, "str | Callable[[Any], str]"]  # dotted key of the summary, how it is shown
TRAINING: dict[str, Column] = {
    "step": ("step", "d"),
    "test accuracy": ("test.accuracy", ".4f"),
    "test loss": ("test.loss", ".4f"),
    "examples/s": ("examples_per_second", ",.0f"),
    "seconds": ("seconds", format_seconds),
}
BENCH: dict[str, Column] = {
    "images/s": ("images_per_second.median", ",.4g"),
    "peak of tensors": ("memory.tensor_peak_bytes", format_bytes),
    "resident": ("memory.rss_peak_bytes", format_bytes),
    "of a matrix product": ("share_of_matmul", ".0%"),
    "first update": ("seconds_to_first_update.total", format_seconds),
}
COLUMNS: dict[str | None, dict[str, Column]] = {"train": TRAINING, "evaluate": TRAINING, "bench": BENCH}
