"""A sweep: the outcome each job leaves in a scratch folder, and the table that ranks them.

Jobs may run in processes of their own, so files, not variables, carry what became of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from accumtrain.config import Config
from accumtrain.console import format_bytes, format_seconds, table
from accumtrain.errors import AccumtrainError, ConfigError
from accumtrain.runs import read_summary, write_json

SCRATCH = "ACCUMTRAIN_SWEEP_DIR"  # environment variable, read by conf/config.yaml


@dataclass(frozen=True)
class Outcome:
    """What became of one job. `path`: the run's folder, `job`: what it did; None if its configuration was refused."""

    overrides: list[str]
    path: str | None
    job: str | None
    exit_code: int

    @property
    def status(self) -> str:
        if self.exit_code == 0:
            return "completed"
        names = {error.exit_code: error.__name__ for error in AccumtrainError.__subclasses__()}
        return names.get(self.exit_code, "interrupted" if self.exit_code == 130 else "bug")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The run's summary, or what a benchmark measured; empty where this job wrote none."""
        if self.path is None or self.exit_code not in (0, 4, 75):
            return {}
        if self.job == "bench":
            return json.loads((Path(self.path) / "bench.json").read_text())
        return read_summary(Path(self.path)) or {}


def check_distinct(configs: Sequence[Config]) -> None:
    """Raises ConfigError if two jobs of a sweep would train in one folder."""
    names = [config.run.name for config in configs if config.job == "train"]
    shared = next((name for name in names if names.count(name) > 1), None)
    if shared is not None:
        raise ConfigError(
            f"run.name={shared}: {names.count(shared)} jobs of the sweep would train in one folder; "
            "leave run.name out, each job then gets a name of its own"
        )


def leave(scratch: Path, number: int, outcome: Outcome) -> None:
    """Leaves the outcome of job `number` for the command that started the sweep."""
    write_json(scratch / f"{number:06d}.json", asdict(outcome))


def collect(scratch: Path) -> list[Outcome]:
    """The outcomes left so far, in the order of the jobs."""
    return [Outcome(**json.loads(file.read_text())) for file in sorted(scratch.glob("*.json"))]


def report(outcomes: Sequence[Outcome]) -> None:
    """Shows the runs, best first, and writes them to sweep.json beside the runs."""
    ranked = sorted(outcomes, key=_rank)
    swept = _swept_keys(outcomes)
    columns: dict[str, Column] = {}
    for job in dict.fromkeys(outcome.job for outcome in outcomes):
        columns |= COLUMNS.get(job, {})
    rows = [_row(outcome, swept, columns.values()) for outcome in ranked]
    table(f"{len(ranked)} runs, best first", [*swept, "status", *columns], rows)
    records = [{**asdict(each), "status": each.status, "summary": each.summary} for each in ranked]
    run_dir = next((Path(each.path).parent for each in outcomes if each.path), None)
    if run_dir is not None and run_dir.is_dir():  # else no run began
        write_json(run_dir / "sweep.json", records)


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """That of the first job that failed, 0 if none did."""
    return next((outcome.exit_code for outcome in outcomes if outcome.exit_code), 0)


def _rank(outcome: Outcome) -> tuple[bool, float, float, float]:
    """Failed ones last; then test accuracy, test loss, and the speed a benchmark found."""
    accuracy, loss = _test(outcome.summary, "accuracy"), _test(outcome.summary, "loss")
    return (
        outcome.exit_code != 0,
        float("inf") if accuracy is None else -accuracy,
        float("inf") if loss is None else loss,
        -outcome.summary.get("images_per_second", {}).get("median", 0.0),
    )


def _test(summary: dict[str, Any], name: str) -> float | None:
    return (summary.get("test") or {}).get(name)


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
