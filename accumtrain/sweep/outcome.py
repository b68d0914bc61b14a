"""What became of one job of a sweep."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from accumtrain.errors import AccumtrainError, WorkerLostError
from accumtrain.runs import read_summary

INTERRUPTED = 130  # as a shell reports Ctrl-C: stopped before there was a state to save
KILLED = 128  # and the number of the signal, as a shell reports it


@dataclass(frozen=True)
class Outcome:
    """`path`: the run's folder, `job`: what it did; None if its configuration was refused.

    `ended_with`: its exit code; None as long as it runs in a process of its own, and for ever if that was lost.
    """

    overrides: list[str]
    path: str | None
    job: str | None
    ended_with: int | None

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
            return signal.Signals(self.ended_with - KILLED).name
        names = {error.exit_code: error.__name__ for error in AccumtrainError.__subclasses__()}
        return names.get(self.ended_with, "bug")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The run's summary, or what a benchmark measured; empty where this job wrote none."""
        if self.path is None or self.ended_with not in (0, 4, 75):
            return {}
        if self.job == "bench":
            return json.loads((Path(self.path) / "bench.json").read_text())
        return read_summary(Path(self.path)) or {}

    def test(self, name: str) -> float | None:
        """`loss` or `accuracy` of the last evaluation, None without one."""
        return (self.summary.get("test") or {}).get(name)

    @property
    def images_per_second(self) -> float | None:
        """What a benchmark measured."""
        return (self.summary.get("images_per_second") or {}).get("median")

    @property
    def objective(self) -> float:
        """What a sweeper may maximize, that by which runs are ranked. 0 where the job failed: nothing is worse."""
        value = self.images_per_second if self.job == "bench" else self.test("accuracy")
        return value if self.ended_with == 0 and value is not None else 0.0
