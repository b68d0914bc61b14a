"""The metrics of a run while it trains: metrics.jsonl, trackers, and the time behind examples per second."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from accumtrain.config.arithmetic import Epochs
from accumtrain.process import environment
from accumtrain.runs.run import Run
from accumtrain.runs.tracker import Tracker

BESIDE_MEANS = ("learning_rate", "grad_norm", "loss_scale", "skipped")  # of an update


class Logbook:
    """Writes each record to metrics.jsonl and the trackers, and remembers them for the summary.

    Args:
        run: the run's folder; its metrics end with the restored update.
        batch_size: examples per update.
        epochs: of the run.
        means: names of the loss and the metrics.

    Attributes:
        trackers: what gets the records and the summary, too; none until a session adds them.
    """

    def __init__(self, run: Run, batch_size: int, epochs: Epochs, means: Sequence[str]):
        self._run, self._means = run, means
        self.trackers: list[Tracker] = []
        self._batch_size, self._epochs = batch_size, epochs
        self.records: list[dict[str, Any]] = run.records()
        self._seconds_before = max((record["seconds"] for record in self.records), default=0.0)
        self.seconds_to_first_update: float | None = None
        self.longest = 0.0  # seconds of an update or an evaluation
        self._updates, self._busy = 0, 0.0  # updates timed, and their seconds, without calls that also compile
        self._compiled: set[bool] = set()  # False: a call of one update is compiled; True: one of several updates is
        self._updates_logged, self._busy_logged = 0, 0.0

    @contextmanager
    def timed_updates(self, count: int) -> Iterator[None]:
        """Times the body, which makes `count` updates. The first call of one and of several updates also compiles."""
        started = time.perf_counter()
        yield
        self.longest = max(self.longest, (time.perf_counter() - started) / count)
        if self.seconds_to_first_update is None:
            self.seconds_to_first_update = environment.job_seconds()
        if (together := count > 1) not in self._compiled:
            self._compiled.add(together)
            return
        self._updates += count
        self._busy += time.perf_counter() - started

    @property
    def seconds(self) -> float:
        """Wall time spent on this run so far, over all its sessions."""
        return self._seconds_before + environment.job_seconds()

    @property
    def examples_per_second(self) -> float | None:
        """The mean over this session; None until two updates are done."""
        return self._updates * self._batch_size / self._busy if self._updates else None

    def train(self, step: int, update: Mapping[str, float]) -> None:
        """Logs loss and metrics of an update, and what BESIDE_MEANS names."""
        updates, busy = self._updates - self._updates_logged, self._busy - self._busy_logged
        self._updates_logged, self._busy_logged = self._updates, self._busy
        per_second = updates * self._batch_size / busy if updates else self.examples_per_second
        speed = {"examples_per_second": per_second} if per_second else {}
        values = {name: update[name] for name in (*self._means, *BESIDE_MEANS) if name in update}
        self._write("train", step, values | speed)

    def evaluation(self, step: int, split: str, result: Mapping[str, float]) -> None:
        """Logs an evaluation: loss, metrics, examples and its speed."""
        self.longest = max(self.longest, result["seconds"])
        speed = {"examples_per_second": result["examples"] / result["seconds"]}
        self._write(split, step, {name: result[name] for name in (*self._means, "examples")} | speed)

    def forget_after(self, step: int) -> None:
        """Deletes the records after update `step`, to which the run goes back."""
        self._run.truncate(step)
        self.records = self._run.records()

    def evaluated(self, step: int, split: str) -> bool:
        """Whether an evaluation on a split was logged after `step` updates."""
        return any(record["split"] == split and record["step"] == step for record in self.records)

    def evaluations(self, split: str) -> list[dict[str, Any]]:
        """The records of all evaluations on a split, in order."""
        return [record for record in self.records if record["split"] == split]

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Hands the summary to the trackers, at the end of the session."""
        for tracker in self.trackers:
            tracker.finish(summary)

    def close(self) -> None:
        """Ends the trackers."""
        for tracker in self.trackers:
            tracker.close()

    def last(self, split: str) -> dict[str, float] | None:
        """Loss and metrics of the last record of a split; None without a record."""
        for record in reversed(self.records):
            if record["split"] == split:
                return {name: record[name] for name in self._means if name in record}
        return None

    def _write(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        epoch = float(self._epochs.at(step))
        record = {"step": step, "epoch": epoch, "split": split, **values, "seconds": round(self.seconds, 3)}
        self.records.append(record)
        self._run.log(record)
        for tracker in self.trackers:
            tracker.log(record)
