"""The position of a run, what is due after which update, and its metrics: records, means, the best evaluation."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

from accumtrain.config.arithmetic import Epochs
from accumtrain.console import format_measure
from accumtrain.engine.programs import SUM
from accumtrain.errors import ConfigError
from accumtrain.fields import NOISE, WEIGHT
from accumtrain.process import environment
from accumtrain.runs.contents import HOOK, measured
from accumtrain.runs.run import Run
from accumtrain.runs.schema import Manifest
from accumtrain.train.config import BestBy
from accumtrain.train.tell.trackers import Tracker


class Position:
    """The position of a run: updates, examples, epochs, the sums of this epoch. Checkpoints hold all of them.

    Args:
        epochs: of the run.

    Attributes:
        done: updates made.
        examples: taken from the stream, those of windows that made no update too: the position in that.
        in_epoch: hooks know of the beginning of this epoch, and not of its end.
    """

    def __init__(self, epochs: Epochs):
        self._epochs = epochs
        self.done = self.examples = 0
        self.in_epoch = False
        self._sums: dict[str, float] = {}

    @property
    def facts(self) -> dict[str, Any]:
        """Its part of the manifest of a checkpoint."""
        return {
            "examples": self.examples,
            "epochs": str(self._epochs.at(self.done)),
            "epoch_sums": list(self._sums.items()),
        }

    def restore(self, manifest: Manifest) -> None:
        """Go on from a checkpoint."""
        self.done, self.examples = manifest["step"], manifest["examples"]
        self._sums = {name: math.nan if value is None else value for name, value in manifest["epoch_sums"]}
        self.in_epoch = bool(self._sums)
        self._epochs.restore(self.done, epochs_of(manifest))

    def advance(self, done: int) -> None:
        self.examples += self._epochs.examples(self.done, done)
        self.done = done

    def pass_over(self) -> None:
        """Go on after the examples of a window that made no update."""
        self.examples += self._epochs.batch_after(self.done)

    def begin_epoch(self) -> None:
        self.in_epoch = True

    def end_epoch(self) -> None:
        self.in_epoch, self._sums = False, {}

    def add(self, sums: Mapping[str, float]) -> None:
        """Add sums of updates over their examples, and the weight of these, to those of the epoch."""
        self._sums = {name: self._sums.get(name, 0.0) + value for name, value in sums.items()}

    @property
    def epoch_means(self) -> dict[str, float]:
        """The means over the examples of this epoch so far; none without an update."""
        return {name: value / self._sums[WEIGHT] for name, value in self._sums.items() if name != WEIGHT}

    def epochs_begun(self, step: int) -> int:
        """Return the number of epochs that have begun when the update `step` is made."""
        return self._epochs.begun(step)

    @property
    def epoch(self) -> float:
        return float(self._epochs.at(self.done))

    @property
    def counted_epoch(self) -> float:
        return self._epochs.counted(self._epochs.at(self.done))

    @property
    def shown_epoch(self) -> str:
        return self._epochs.shown(self._epochs.at(self.done))


def epochs_of(manifest: Manifest) -> Fraction:
    """Return the epochs that were made by the update of a checkpoint."""
    return Fraction(manifest["epochs"])


class Intervals:
    """The updates after which one run logs, evaluates, saves and calls hooks. `done` is the number of updates made.

    Args:
        total: number of updates of the whole run.
        epochs: of the run.
        log: updates from one record to the next.
        evaluate: updates from one evaluation to the next, or "epoch".
        checkpoint: updates from one checkpoint to the next.
        hooks: updates from one call of a hook to the next, of each.
        at_epochs: hooks are called at the ends of epochs, too.
    """

    def __init__(
        self,
        total: int,
        epochs: Epochs,
        *,
        log: int,
        evaluate: int | str,
        checkpoint: int,
        hooks: Sequence[int] = (),
        at_epochs: bool = False,
    ):
        self._total, self._epochs = total, epochs
        self._log_every, self._evaluate_every, self._checkpoint_every = log, evaluate, checkpoint
        self._hooks, self._at_epochs = hooks, at_epochs

    def log(self, done: int) -> bool:
        return done % self._log_every == 0 or done in (1, self._total)

    def checkpoint(self, done: int) -> bool:
        return done % self._checkpoint_every == 0 or done == self._total

    def evaluation(self, done: int) -> bool:
        if done == 0:
            return False
        return done >= self._total or done == self._next_evaluation(done - 1)

    def epoch_end(self, done: int) -> bool:
        """Return whether the update `done` completes an epoch, or all of them."""
        return done > 0 and (done >= self._total or done == self._next_epoch_end(done - 1))

    def evaluations_from(self, done: int) -> int:
        """Return the number of evaluations after the updates from `done` to the last, both included."""
        if done >= self._total:
            return 1
        before, last = max(done - 1, 0), self._total - 1
        if isinstance(self._evaluate_every, int):
            return last // self._evaluate_every - before // self._evaluate_every + 1
        ends = math.floor(self._epochs.at(last)) - math.floor(self._epochs.at(before))
        return min(ends, last - before) + 1  # an update may complete several epochs

    def next(self, done: int) -> int:
        """Return the first update after `done` that is followed by any of them, or by another batch."""
        if done == 0:
            return 1
        others = [_next(done, every) for every in (self._log_every, self._checkpoint_every, *self._hooks)]
        epoch_end = self._next_epoch_end(done) if self._at_epochs else self._total
        stage_end = self._epochs.next_stage(done) or self._total
        return min(*others, self._next_evaluation(done), epoch_end, stage_end, self._total)

    def _next_evaluation(self, done: int) -> int:
        every = self._evaluate_every
        return _next(done, every) if isinstance(every, int) else self._next_epoch_end(done)

    def _next_epoch_end(self, done: int) -> int:
        return self._epochs.update_of(math.floor(self._epochs.at(done)) + 1)


def _next(done: int, every: int) -> int:
    return done + every - done % every


EACH_RECORD = {"step", "epoch", "split", "seconds"}
BESIDE_MEANS = ("learning_rate", "grad_norm", *NOISE, "loss_scale", "skipped")  # of an update


class MetricsLogger:
    """The records of a run: metrics.jsonl and the trackers get each, and the summary is made of them.

    Args:
        run: the run's folder; its metrics end with the restored update.
        epochs: of the run.
        means: names of the loss and the metrics.

    Attributes:
        trackers: they get the records and the summary, too; none until a session adds them.
    """

    def __init__(self, run: Run, epochs: Epochs, means: Sequence[str]):
        self._run, self._means = run, means
        self.trackers: list[Tracker] = []
        self._epochs = epochs
        self.records: list[dict[str, Any]] = measured(run.records())
        self._seconds_before = max((record["seconds"] for record in self.records), default=0.0)
        self.seconds_to_first_update: float | None = None
        self.longest = 0.0  # seconds of an update or an evaluation
        self._examples, self._busy = 0, 0.0  # of timed updates, and their seconds, without calls that also compile
        self._compiled: set[bool] = set()  # False: a call of one update is compiled; True: one of several updates is
        self._examples_logged, self._busy_logged = 0, 0.0

    @contextmanager
    def timed_updates(self, count: int, batch: int) -> Iterator[None]:
        """Time the body, which makes `count` updates. The first call of one and of several updates also compiles.

        Args:
            batch: examples of each.
        """
        started = time.perf_counter()
        yield
        self.longest = max(self.longest, (time.perf_counter() - started) / count)
        if self.seconds_to_first_update is None:
            self.seconds_to_first_update = environment.job_seconds()
        if (together := count > 1) not in self._compiled:
            self._compiled.add(together)
            return
        self._examples += count * batch
        self._busy += time.perf_counter() - started

    def forget_compiled(self) -> None:
        """Leave the next calls out of the speed, as they compile again."""
        self._compiled.clear()

    @property
    def seconds(self) -> float:
        """Wall time spent on this run so far, over all its sessions."""
        return self._seconds_before + environment.job_seconds()

    @property
    def examples_per_second(self) -> float | None:
        """The mean over this session; None until two updates are done."""
        return self._examples / self._busy if self._examples else None

    def train(self, step: int, update: Mapping[str, float]) -> None:
        """Log loss and metrics of an update, and the values of BESIDE_MEANS."""
        examples, busy = self._examples - self._examples_logged, self._busy - self._busy_logged
        self._examples_logged, self._busy_logged = self._examples, self._busy
        per_second = examples / busy if examples else self.examples_per_second
        speed = {"examples_per_second": per_second} if per_second else {}
        self._write("train", step, self.values(update) | speed)

    def values(self, update: Mapping[str, float]) -> dict[str, float]:
        """Return loss and metrics of an update, and the values of BESIDE_MEANS."""
        return {name: update[name] for name in (*self._means, *BESIDE_MEANS) if name in update}

    def evaluation(self, step: int, split: str, result: Mapping[str, float]) -> None:
        """Log an evaluation: loss, metrics, examples and its speed."""
        self.longest = max(self.longest, result["seconds"])
        speed = {"examples_per_second": result["examples"] / result["seconds"]}
        self._write(split, step, {name: result[name] for name in (*self._means, "examples")} | speed)

    def describe(self, split: str, result: Mapping[str, float]) -> str:
        """Return loss and metrics of an evaluation in words."""
        return ", ".join(f"{split} {name} {format_measure(result[name])}" for name in self._means)

    def hook(self, step: int, values: Mapping[str, float]) -> None:
        """Log numbers of a hook.

        Raises:
            ConfigError: `values` are no numbers by name, or a name is one that each record has.
        """
        try:
            numbers = {name: float(value) for name, value in values.items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise ConfigError(
                f"a hook has called log({values!r}): it takes numbers by name, such as log({{'size': 2.5}})"
            ) from error
        if taken := EACH_RECORD & numbers.keys():
            raise ConfigError(f"log: each record has {' and '.join(sorted(taken))} already; choose another name")
        self._write(HOOK, step, numbers)

    def forget_after(self, step: int) -> None:
        """Delete the records after update `step`, to which the run goes back."""
        self._run.truncate(step)
        self.records = measured(self._run.records())

    def evaluated(self, step: int, split: str) -> bool:
        """Return whether an evaluation on a split was logged after `step` updates."""
        return any(record["step"] == step for record in self.records_of(split))

    def records_of(self, split: str) -> list[dict[str, Any]]:
        """Return all records of a split, in order."""
        return [record for record in self.records if record["split"] == split]

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Hand the summary to the trackers, at the end of the session."""
        for tracker in self.trackers:
            tracker.finish(summary)

    def close(self) -> None:
        for tracker in self.trackers:
            tracker.close()

    def last(self, split: str) -> dict[str, float] | None:
        """Return loss and metrics of the last record of a split; None without a record."""
        records = self.records_of(split)
        return {name: records[-1][name] for name in self._means if name in records[-1]} if records else None

    def _write(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        epoch = float(self._epochs.at(step))
        record = {"step": step, "epoch": epoch, "split": split, **values, "seconds": round(self.seconds, 3)}
        if split != HOOK:
            self.records.append(record)
        self._run.log(record)
        for tracker in self.trackers:
            tracker.log(record)


def evaluations_since_best(records: Sequence[Mapping[str, Any]], best_by: BestBy, min_delta: float = 0.0) -> int:
    """Return the number of evaluations after the last one that was better than all before it.

    Args:
        records: of all evaluations, in order; a value that is not finite is None.
        min_delta: the gain of what is monitored that counts as better. With 0 a lower loss counts, too, where the
            metric is the same.
    """
    best = 0
    for index, record in enumerate(records):
        if min_delta:
            is_better = best_by.score(record) - best_by.score(records[best]) > min_delta
        else:
            is_better = best_by.rank(record) > best_by.rank(records[best])
        best = index if is_better else best
    return max(len(records) - 1 - best, 0)


class RunningMeans:
    """Means over the examples of the last `updates` updates, or of all that were made here if these are fewer.

    Updates that were made in one call count together, so that up to a call more may be in it.

    Args:
        names: of the loss and the metrics.
    """

    def __init__(self, names: Sequence[str], updates: int):
        self._names, self._updates = names, updates
        self._calls: deque[tuple[int, dict[str, float]]] = deque()

    def add(self, count: int, update: Mapping[str, float]) -> dict[str, float]:
        """Add `count` updates.

        Args:
            update: the scalars of the last of them, and with more than one the sums of all, as Step.updates returns it.

        Returns:
            The sums of these updates over their examples, and the weight of these.
        """
        weight = {WEIGHT: update.get(f"{SUM}{WEIGHT}", update[WEIGHT])}
        sums = {name: update.get(f"{SUM}{name}", update[name] * update[WEIGHT]) for name in self._names} | weight
        self._calls.append((count, sums))
        while sum(count for count, _ in self._calls) - self._calls[0][0] >= self._updates:
            self._calls.popleft()
        return sums

    def read(self) -> dict[str, float]:
        """Return the means by name."""
        weight = sum(sums[WEIGHT] for _, sums in self._calls)
        return {name: sum(sums[name] for _, sums in self._calls) / weight for name in self._names}
