"""A dry run: a few updates with the real window, optimizer, data, evaluation and checkpoint, to measure them."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accumtrain.config.arithmetic import Epochs, micro_batch_size, total_steps
from accumtrain.config.schema import Config
from accumtrain.data.pipeline import make_train_stream
from accumtrain.devices.found import Devices
from accumtrain.engine.step import WORTH_TOGETHER, CallLength
from accumtrain.measure.flops import median_seconds
from accumtrain.process import environment
from accumtrain.tasks.objective import Objective
from accumtrain.train.build import build_window
from accumtrain.train.checkpoint import Checkpoints
from accumtrain.train.evaluator import build_evaluator
from accumtrain.train.memory import Meter

MICRO_STEPS = 2  # largest number in a window, as the second one adds to a buffer in use
EMPTY_CALLS = 31  # calls without work that measure the time of a call
SECONDS = 2.0  # of timed updates, at least one, after the first, which also traces and compiles


def measure(
    config: Config, objective: Objective, devices: Devices, micro_batches: Sequence[int | None], directory: Path
) -> list[dict[str, Any]]:
    """Build the run of `config`. Return the fields of a ProbeResult for each of `micro_batches`, by some updates.

    Args:
        config: accum.steps is ignored, unless a micro-batch is None and follows from it.
        micro_batches: examples per micro-step and replica. They increase, as the peak of resident memory is that of
            the process.
        directory: an empty folder for checkpoints.

    Raises:
        ConfigError: batch_size is not divisible by a micro-batch, or accum.steps, and replicas.
        tf.errors.ResourceExhaustedError: it does not fit.
    """
    windows = [_window_of(config, micro_batch, devices.replicas) for micro_batch in micro_batches]
    steps, micro_batch = windows[0]
    # a loss of the whole batch keeps the outputs of a whole window, so a smaller one does not show its memory
    most = config.batch_size if config.loss.is_of_whole_batch else MICRO_STEPS
    dry_run = DryRun(config.with_accum_steps(steps), objective, devices, micro_batch, directory, min(steps, most))
    found = [_measure_updates(dry_run, config.batch_size, steps, micro_batch)]
    for steps, micro_batch in windows[1:]:
        dry_run.begin(micro_batch, min(steps, most))
        found.append(_measure_updates(dry_run, config.batch_size, steps, micro_batch))
    return found


def _window_of(config: Config, micro_batch: int | None, replicas: int) -> tuple[int, int]:
    """Return accum.steps and the micro-batch, one of which follows from the other."""
    given = config.accum.count if micro_batch is None else micro_batch
    other = micro_batch_size(config.batch_size, given, replicas)  # the same division gives the steps
    return (given, other) if micro_batch is None else (other, micro_batch)


def _measure_updates(dry_run: DryRun, batch_size: int, steps: int, micro_batch: int) -> dict[str, Any]:
    dry_run.update()
    first_update = environment.job_seconds()
    timings, started = [dry_run.update()], time.perf_counter()
    while time.perf_counter() - started < SECONDS:
        timings.append(dry_run.update())
    micro_step, commit = map(statistics.median, zip(*timings, strict=True))
    dry_run.evaluate()
    memory = dry_run.finish()
    return {
        "micro_batch": micro_batch,
        "accum_steps": steps,
        "replicas": dry_run.replicas,
        "batch_norm": bool(dry_run.window.model.norms),
        "static_bytes": memory["tensor_static_bytes"],
        "peak_bytes": memory["tensor_peak_bytes"],
        "peak_by_compiler": memory["peak_by_compiler"],
        "rss_bytes": memory["rss_peak_bytes"],
        "examples_per_second": batch_size / (steps * micro_step + commit),
        "seconds_to_first_update": first_update + (steps - dry_run.micro_steps) * micro_step,
    }


class DryRun:
    """The parts of train/train.py that hold memory, created in the same order.

    Args:
        micro_batch: examples per micro-step and replica.
        micro_steps: micro-steps per update.

    Attributes:
        micro_steps: those of an update now.
    """

    def __init__(
        self,
        config: Config,
        objective: Objective,
        devices: Devices,
        micro_batch: int,
        directory: Path,
        micro_steps: int,
    ):
        self._config, self._objective, self._devices, self._directory = config, objective.longest, devices, directory
        self.replicas = devices.replicas
        total = total_steps(config, Epochs(config, objective.stored.train.size))
        self.window = build_window(config, objective, total, devices.strategy)
        with devices.strategy.scope():
            self.step = devices.runtime.build_step(self.window)
        self._updates_pace = CallLength(WORTH_TOGETHER)
        self._together = False  # several updates in one call are compiled
        self.begin(micro_batch, micro_steps)

    def begin(self, micro_batch: int, micro_steps: int) -> None:
        """Get ready for updates of this size, with the same window. Free the memory of an earlier size first."""
        config, data, strategy = self._config, self._objective.data, self._devices.strategy
        batch = micro_batch * self.replicas
        self.batches: Any = None
        self._evaluator: Any = None
        gc.collect()
        with strategy.scope():
            self._evaluator = build_evaluator(
                config,
                self._objective,
                data.evaluated_split,
                batch,
                self.window.model,
                self._devices.runtime,
                self.window.ema,
            )
        self._checkpoints = Checkpoints(
            self._directory, self.window, config.checkpoint.keep, facts=dict, runtime=self._devices.runtime
        )
        self.batches = make_train_stream(strategy, data, batch=batch, seed=config.run.seed)
        self.micro_steps, self._pace = micro_steps, CallLength()
        self.calls = 0.0  # compiled calls per update, of the last updates
        self.meter = Meter(self._devices.runtime)
        self.meter.start()

    def update(self) -> tuple[float, float]:
        """Make an update. Return the seconds of a micro-step and of the commit."""
        started, taken, self.calls = time.perf_counter(), 0, 1.0  # one call for the commit
        while taken < self.micro_steps:
            count = self._pace.next(self.micro_steps - taken)
            with self._pace.timed(count):
                self.step.accumulate(self.batches, count)
            taken, self.calls = taken + count, self.calls + 1
        self._devices.runtime.wait()
        accumulated = time.perf_counter()
        int(self.step.commit(partial=True)["step"])
        return (accumulated - started) / self.micro_steps, time.perf_counter() - accumulated

    def updates(self, most: int) -> int:
        """Make up to `most` updates, in one call if they are short, as in training. Return their number."""
        count = self._updates_pace.next(most) if self.step.makes_updates_together else 1
        if count > 1 and not self._together:
            self._together = True
            self.step.updates(self.batches, 1)  # not timed, as it traces and compiles
        with self._updates_pace.timed(count):
            if count == 1:
                self.update()
            else:
                self.step.updates(self.batches, count)["step"].numpy()
                self.calls = 1 / count
        return count

    def seconds_of_call(self) -> float | None:
        """Return the seconds of a compiled call without work; None where each micro-step is a call of its own."""
        if not self.step.makes_updates_together:
            return None
        empty = self._devices.runtime.prepare_call(lambda: self.step.accumulate(self.batches, 0))
        return median_seconds(empty, EMPTY_CALLS)

    def evaluate(self) -> None:
        """Evaluate the first batch."""
        once = iter([False])
        self._evaluator(stop=lambda: next(once, True), report=lambda done, batches: None)

    def finish(self) -> dict[str, int | None]:
        """Write the last and the best checkpoint, and read the meter."""
        with self._checkpoints:
            self._checkpoints.save()
            self._checkpoints.save_if_best(dict.fromkeys(("loss", *self.window.metrics), 0.0))
        return self.meter.read()
