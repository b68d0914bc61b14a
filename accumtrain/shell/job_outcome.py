"""The outcome of one job of a sweep."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from accumtrain.config.schema import Config
from accumtrain.errors import AccumtrainError, WorkerLostError
from accumtrain.kinds.jobs import JOBS
from accumtrain.runs.folder import result_file
from accumtrain.shell.guard import INTERRUPTED

KILLED = 128  # plus the number of the signal, as a shell reports it


@dataclass(frozen=True)
class JobOutcome:
    """The outcome of one job. Without `job` and `file` its configuration was refused.

    Attributes:
        overrides: the overrides of its command.
        job: the name of its job, such as train.
        file: the file that its result is written to.
        written_before: time of the last change of that file before the job, in nanoseconds; None if it did not exist.
        ended_with: its exit code; None while it runs in another process, and after that if the process was lost.
    """

    overrides: list[str]
    job: str | None = None
    file: str | None = None
    written_before: int | None = None
    ended_with: int | None = None

    @property
    def path(self) -> str | None:
        """The folder of the job."""
        return None if self.file is None else str(Path(self.file).parent)

    @property
    def exit_code(self) -> int:
        return WorkerLostError.exit_code if self.ended_with is None else self.ended_with

    @property
    def status(self) -> str:
        if self.ended_with is None:
            return "lost"
        if self.ended_with == 0:
            return "completed"
        if self.ended_with == INTERRUPTED:
            return "interrupted"
        if self.ended_with > KILLED:
            return signal_name(self.ended_with - KILLED) or f"exit code {self.ended_with}"
        names = {error.exit_code: error.__name__ for error in AccumtrainError.__subclasses__()}
        return names.get(self.ended_with, "bug")

    @cached_property
    def result(self) -> dict[str, Any]:
        """The content of `file`; empty if the job wrote nothing."""
        written = None if self.file is None else _written(Path(self.file))
        if self.file is None or written is None:
            return {}
        if self.ended_with != 0 and written == self.written_before:
            return {}  # the file is that of an earlier job
        content: dict[str, Any] = json.loads(Path(self.file).read_text(encoding="utf-8"))
        return content

    def value(self, key: str) -> Any:
        """The value at a dotted key of the result; None if there is none."""
        value: Any = self.result
        for name in key.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return value

    @property
    def rank(self) -> tuple[float, ...]:
        """The sort key of the job; smaller is better. Failed jobs come last, and jobs without a value after others."""
        keys = JOBS[self.job].ranking if self.job else ()
        values = [(self.value(key), sign) for key, sign in keys]
        ranks = [float("inf") if value is None else sign * value for value, sign in values]
        longest = max(len(job.ranking) for job in JOBS)
        return (self.exit_code != 0, *ranks, *[float("inf")] * (longest - len(ranks)))

    @property
    def objective(self) -> float:
        """What a sweeper maximizes: the first value that the job is ranked by. 0 if it failed: the lowest value."""
        ranking = JOBS[self.job].ranking if self.job else ()
        if self.ended_with != 0 or not ranking:
            return 0.0
        key, sign = ranking[0]
        return -sign * (self.value(key) or 0.0)


def signal_name(number: int) -> str | None:
    """Such as SIGKILL; None for a real-time signal, which has no name, and for a number that is no signal."""
    return signal.Signals(number).name if number in {*signal.Signals} else None


def begun(config: Config, overrides: Sequence[str]) -> JobOutcome:
    """The outcome of a job that is about to begin."""
    file = result_file(config)
    return JobOutcome(list(overrides), config.job, str(file), _written(file))


def _written(file: Path) -> int | None:
    return file.stat().st_mtime_ns if file.exists() else None
