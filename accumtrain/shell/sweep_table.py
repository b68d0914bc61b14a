"""Compares the jobs of a sweep: checks beforehand that they are distinct, and ranks them in a table afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from accumtrain.config.schema import Config
from accumtrain.console import say, table
from accumtrain.errors import ConfigError
from accumtrain.kinds.jobs import JOBS, Column, cell
from accumtrain.runs.compared import read_ranked
from accumtrain.runs.files import write_json
from accumtrain.runs.folder import result_file
from accumtrain.runs.report_page import write_page
from accumtrain.shell.job_outcome import JobOutcome


def check_distinct(configs: Sequence[Config]) -> None:
    """Raises ConfigError if two jobs of a sweep would write the same file."""
    files = [result_file(config) for config in configs]
    shared = next((config for config, file in zip(configs, files, strict=True) if files.count(file) > 1), None)
    if shared is not None:
        file, job = result_file(shared), JOBS[shared.job]
        what = f"{files.count(file)} jobs of the sweep would write {file}"
        if job.scope in ("trained", "runs"):  # each job writes there, whatever its name
            raise ConfigError(f"job={job.name}: {what}; give their commands one by one")
        raise ConfigError(
            f"run.name={shared.run.name}: {what}; leave run.name out, or give their commands one by one, each with a "
            "name of its own"
        )


def report(outcomes: Sequence[JobOutcome], run_dir: Path) -> None:
    """Prints a table of the jobs, best first, and writes them to sweep.json and report.html in `run_dir`.

    Raises:
        CheckpointError: a file can't be written.
    """
    ranked = sorted(outcomes, key=lambda outcome: outcome.rank)
    swept = _swept_keys(outcomes)
    columns: dict[str, Column] = {}
    for job in dict.fromkeys(outcome.job for outcome in outcomes if outcome.job):
        columns |= JOBS[job].columns
    rows = [_row(outcome, swept, columns.values()) for outcome in ranked]
    table(f"{len(ranked)} runs, best first", [*swept, "status", *columns], rows)
    if run_dir.is_dir():  # else no run began
        write_json(run_dir / "sweep.json", [_record(each) for each in ranked])
        _write_page(ranked, run_dir / "report.html")


def _write_page(outcomes: Sequence[JobOutcome], page: Path) -> None:
    """Compares the trainings among the jobs on a page, if there are any."""
    folders = dict.fromkeys(Path(outcome.path) for outcome in outcomes if outcome.path is not None)
    if ranked := read_ranked([folder for folder in folders if (folder / JOBS["train"].file).is_file()]):
        write_page(ranked, page)
        say(f"{page} compares the runs for a browser")


def _record(outcome: JobOutcome) -> dict[str, Any]:
    return {
        "overrides": outcome.overrides,
        "path": outcome.path,
        "job": outcome.job,
        "exit_code": outcome.exit_code,
        "status": outcome.status,
        "objective": outcome.objective,
        "summary": outcome.result,
    }


def exit_code(outcomes: Sequence[JobOutcome]) -> int:
    """The exit code of the first job that failed; 0 if none did."""
    return next((outcome.exit_code for outcome in outcomes if outcome.exit_code), 0)


def _swept_keys(outcomes: Sequence[JobOutcome]) -> list[str]:
    """The keys whose values differ between jobs, in the order of the command."""
    jobs = [_values(outcome) for outcome in outcomes]
    keys = dict.fromkeys(key for job in jobs for key in job)
    return [key for key in keys if len({job.get(key) for job in jobs}) > 1]


def _values(outcome: JobOutcome) -> dict[str, str]:
    return dict(override.lstrip("+").partition("=")[::2] for override in outcome.overrides)


def _row(outcome: JobOutcome, swept: Sequence[str], columns: Iterable[Column]) -> list[str]:
    values = _values(outcome)
    measured = (cell(outcome.value(key), form) for key, form in columns)
    return [*(values.get(key, "-") for key in swept), outcome.status, *measured]
