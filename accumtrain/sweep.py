"""A sweep: the outcome each job leaves in a scratch folder, and the table that ranks them.

Jobs may run in processes of their own, so files, not variables, carry what became of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accumtrain.config import Config
from accumtrain.console import format_seconds, table
from accumtrain.errors import AccumtrainError, ConfigError
from accumtrain.runs import read_summary, write_json

SCRATCH = "ACCUMTRAIN_SWEEP_DIR"  # environment variable, read by conf/config.yaml


@dataclass(frozen=True)
class Outcome:
    """What became of one job. `path`: the run's folder, None if its configuration was refused."""

    overrides: list[str]
    path: str | None
    exit_code: int

    @property
    def status(self) -> str:
        if self.exit_code == 0:
            return "completed"
        names = {error.exit_code: error.__name__ for error in AccumtrainError.__subclasses__()}
        return names.get(self.exit_code, "interrupted" if self.exit_code == 130 else "bug")

    @property
    def summary(self) -> dict[str, Any]:
        """The run's summary; empty where this job wrote none."""
        wrote_one = self.path is not None and self.exit_code in (0, 4, 75)
        return (read_summary(Path(self.path)) if wrote_one and self.path else None) or {}


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
    """Shows the runs, best first by test accuracy then test loss, and writes them to sweep.json beside the runs."""
    ranked = sorted(outcomes, key=_rank)
    swept = _swept_keys(outcomes)
    columns = [*swept, "status", "step", "test accuracy", "test loss", "examples/s", "seconds"]
    table(f"{len(ranked)} runs, best first", columns, [_row(outcome, swept) for outcome in ranked])
    rows = [{**asdict(each), "status": each.status, "summary": each.summary} for each in ranked]
    run_dir = next((Path(each.path).parent for each in outcomes if each.path), None)
    if run_dir is not None and run_dir.is_dir():  # else no run began
        write_json(run_dir / "sweep.json", rows)


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """That of the first job that failed, 0 if none did."""
    return next((outcome.exit_code for outcome in outcomes if outcome.exit_code), 0)


def _rank(outcome: Outcome) -> tuple[bool, float, float]:
    accuracy, loss = _test(outcome.summary, "accuracy"), _test(outcome.summary, "loss")
    return (
        outcome.exit_code != 0,
        float("inf") if accuracy is None else -accuracy,
        float("inf") if loss is None else loss,
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


def _row(outcome: Outcome, swept: Sequence[str]) -> list[str]:
    summary, values = outcome.summary, _values(outcome)
    numbers: list[tuple[Any, str]] = [
        (summary.get("step"), "d"),
        (_test(summary, "accuracy"), ".4f"),
        (_test(summary, "loss"), ".4f"),
        (summary.get("examples_per_second"), ",.0f"),
    ]
    seconds = summary.get("seconds")
    return [
        *(values.get(key, "-") for key in swept),
        outcome.status,
        *("-" if number is None else format(number, form) for number, form in numbers),
        "-" if seconds is None else format_seconds(seconds),
    ]
