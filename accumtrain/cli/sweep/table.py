"""The outcome of each job of a sweep, and the table that ranks them."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from accumtrain.config.jobs import JOBS, Column, cell
from accumtrain.config.read import flatten_keys, to_mapping
from accumtrain.config.schema import Config
from accumtrain.console import format_things, say, table
from accumtrain.errors import AccumtrainError, ConfigError, Preempted, WorkerLostError
from accumtrain.fields import value_at
from accumtrain.process.signals import INTERRUPTED
from accumtrain.report.compare import describe_loss, read_ranked, read_run
from accumtrain.report.page import write_page
from accumtrain.runs.files import write_json
from accumtrain.runs.folder import result_file
from accumtrain.tasks.config import LOSS
from accumtrain.train.config import BestBy

STOPPED = (Preempted.exit_code, INTERRUPTED)
_REFUSED = ("", "")  # the group of jobs without a result to rank, which comes last
KILLED = 128  # plus the number of the signal, as a shell reports it


@dataclass(frozen=True)
class JobOutcome:
    """The outcome of one job of a sweep. Without `job` and `file` its configuration was refused.

    Attributes:
        overrides: the overrides of its command.
        job: the name of its job, such as train.
        file: the file that its result is written to.
        written_before: time of the last change of that file before the job, in nanoseconds; None if it did not exist.
        ended_with: its exit code; None while it runs in another process, and after that if the process was lost.
        started: False if it was left out after another one had failed (sweep.fail_fast).
        lower_is_better: the direction of what it is ranked by first.
        data: the name of its data; None if its configuration was refused.
        ranked_by: the metric that it is ranked by first, or the loss with its kind; None if its configuration was
            refused. Jobs are ranked among those that have it and the data in common.
    """

    overrides: list[str]
    job: str | None = None
    file: str | None = None
    written_before: int | None = None
    ended_with: int | None = None
    lower_is_better: bool = False
    started: bool = True
    data: str | None = None
    ranked_by: str | None = None

    @property
    def path(self) -> str | None:
        return None if self.file is None else str(Path(self.file).parent)

    @property
    def exit_code(self) -> int | None:
        """The exit code of the job; None if it was not started."""
        if not self.started:
            return None
        return WorkerLostError.exit_code if self.ended_with is None else self.ended_with

    @property
    def status(self) -> str:
        if not self.started:
            return "not started"
        if self.ended_with is None:
            return "lost"
        if self.ended_with == 0:
            return "completed"
        if self.ended_with == INTERRUPTED:
            return "interrupted"
        if self.ended_with > KILLED:
            return find_signal_name(self.ended_with - KILLED) or f"exit code {self.ended_with}"
        names = {error.exit_code: error.__name__ for error in AccumtrainError.__subclasses__()}
        return names.get(self.ended_with, "bug")

    @property
    def has_failed(self) -> bool:
        """True of a job that has ended, neither well nor by a stop."""
        return self.ended_with not in (None, 0, *STOPPED)

    @cached_property
    def result(self) -> dict[str, Any]:
        """The content of `file`; empty if the job wrote nothing."""
        if self.file is None or (written := _written(Path(self.file))) is None:
            return {}
        if self.ended_with != 0 and written == self.written_before:
            return {}  # the file is that of an earlier job
        content: dict[str, Any] = json.loads(Path(self.file).read_text(encoding="utf-8"))
        return content

    def value(self, key: str) -> Any:
        return value_at(self.result, key)

    @property
    def rank(self) -> tuple[float, ...]:
        """The sort key of the job; smaller is better.

        Jobs without a value come after others, then those that have failed, then those that were not started.
        """
        ranks = JOBS[self.job].rank(self.result) if self.job else ()
        longest = max(len(job.ranking) for job in JOBS)
        return ((self.exit_code != 0) + (not self.started), *ranks, *[math.inf] * (longest - len(ranks)))

    @property
    def objective(self) -> float:
        """Return what a sweeper maximizes: the first value that the job is ranked by; the lowest if it failed."""
        first = self.rank[1]
        if not self.started:
            return -math.inf
        if self.ended_with != 0 or first == math.inf:
            return -math.inf if self.lower_is_better else 0.0
        return -first


def find_signal_name(number: int) -> str | None:
    """Return a name such as SIGKILL; None for a real-time signal, which has none, and for another number."""
    return signal.Signals(number).name if number in {*signal.Signals} else None


def begin_outcome(config: Config, overrides: Sequence[str]) -> JobOutcome:
    """Return the outcome of a job that is about to begin."""
    file = result_file(config)
    by = BestBy.of(config.task, config.loss, config.eval.metrics, config.train.monitor)
    return JobOutcome(
        list(overrides),
        config.job,
        str(file),
        _written(file),
        lower_is_better=not by.higher_is_better,
        data=config.data.label,
        ranked_by=describe_loss(dict(flatten_keys(to_mapping(config)))) if by.metric == LOSS else by.metric,
    )


def _written(file: Path) -> int | None:
    """Return the time of the last change of a file, in nanoseconds; None if there is none."""
    return file.stat().st_mtime_ns if file.exists() else None


def check_distinct(configs: Sequence[Config]) -> None:
    """Raise ConfigError if two jobs of a sweep would write the same file."""
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


def _group_of(outcome: JobOutcome) -> tuple[str, str]:
    """Return the data and the measure that jobs must have in common to be ranked against each other."""
    data, measure = str(outcome.data), str(outcome.ranked_by)
    if outcome.job != "train" or outcome.path is None:
        return _REFUSED if outcome.data is None else (data, measure)
    if not outcome.result:
        return _REFUSED
    run = read_run(Path(outcome.path), outcome.result)
    return f"{data} {run.ranked_with[0]}", f"{measure} {run.ranked_with[1]}"


def report_sweep(outcomes: Sequence[JobOutcome], run_dir: Path) -> None:
    """Print a table of the jobs, best first, and write them to sweep.json and report.html in `run_dir`.

    Jobs are ranked among those of the same data and metric: trained runs as job=report ranks them.
    """
    keys_of = [_group_of(outcome) for outcome in outcomes]
    groups = dict.fromkeys(key for key in keys_of if key != _REFUSED)
    indices = {group: index for index, group in enumerate([*groups, _REFUSED])}
    order_of = sorted(range(len(outcomes)), key=lambda place: (indices[keys_of[place]], *outcomes[place].rank))
    ranked = [outcomes[place] for place in order_of]
    settings = [dict(override.lstrip("+").partition("=")[::2] for override in outcome.overrides) for outcome in ranked]
    keys = dict.fromkeys(key for job in settings for key in job)
    swept = [key for key in keys if len({job.get(key) for job in settings}) > 1]  # their values differ
    columns: dict[str, Column] = {}
    for job in dict.fromkeys(outcome.job for outcome in outcomes if outcome.job):
        columns |= JOBS[job].columns_of(outcome.result for outcome in outcomes if outcome.job == job)
    rows = [
        [
            *(job.get(key, "-") for key in swept),
            outcome.status,
            *(cell(outcome.value(key), form) for key, form in columns.values()),
        ]
        for outcome, job in zip(ranked, settings, strict=True)
    ]
    parts = list(map(set, zip(*groups, strict=True)))  # the values of each part in all groups
    names = [name for name, values in zip(("data set", "metric"), parts, strict=False) if len(values) > 1]
    order = f"best first within each {' and '.join(names)}" if names else "best first"
    table(f"{format_things(len(ranked), 'run')}, {order}", [*swept, "status", *columns], rows)
    if run_dir.is_dir():  # else no run began
        records = [
            {
                "overrides": outcome.overrides,
                "path": outcome.path,
                "job": outcome.job,
                "exit_code": outcome.exit_code,
                "status": outcome.status,
                "objective": outcome.objective,
                "summary": outcome.result,
            }
            for outcome in ranked
        ]
        write_json(run_dir / "sweep.json", records)
        folders = dict.fromkeys(Path(outcome.path) for outcome in ranked if outcome.path is not None)
        if runs := read_ranked([folder for folder in folders if (folder / JOBS["train"].file).is_file()]):
            page = run_dir / "report.html"
            write_page(runs, page)
            say(f"{page} compares the runs for a browser")
