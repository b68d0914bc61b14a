"""A dry run: a few updates with the run's real window, optimizer, data, evaluation and checkpoint, to measure them."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from accumtrain.config.arithmetic import Epochs, micro_batch_size, total_steps
from accumtrain.config.schema import Config
from accumtrain.data.pipeline import train_stream
from accumtrain.data.source import Data
from accumtrain.devices.found import Devices
from accumtrain.devices.resolve import resolve
from accumtrain.engine.build_window import build_window
from accumtrain.engine.checkpoint import Checkpoints
from accumtrain.engine.evaluator import Evaluator
from accumtrain.engine.loss import build_means, build_split_metrics
from accumtrain.engine.memory_meter import Meter
from accumtrain.engine.pace import WORTH_TOGETHER, Pace
from accumtrain.engine.step import Step
from accumtrain.process import environment

MICRO_STEPS = 2  # largest number in a window; the second adds to a buffer that is in use already
SECONDS = 2.0  # how long updates are timed, at least one; the first is not, as it also traces and compiles


def measure(config: Config, data: Data, micro_batch: int | None, directory: Path) -> dict[str, Any]:
    """Builds the run of `config` with `micro_batch` examples per micro-step and replica, and measures some updates.

    Args:
        config: accum.steps is ignored, as it follows from `micro_batch`, unless that is None and follows from it.
        directory: an empty folder for checkpoints.

    Returns:
        micro_batch, accum_steps, replicas, batch_norm (whether the model has a norm that takes statistics of a
        micro-batch), static_bytes, peak_bytes, workspace_bytes, rss_bytes, examples_per_second (of whole updates of
        accum_steps micro-steps), seconds_to_first_update (from the start of the process).

    Raises:
        ConfigError: batch_size does not divide by micro_batch, or accum.steps, and replicas.
        tf.errors.ResourceExhaustedError: it does not fit.
    """
    devices = resolve(config.device)
    given = config.accum.count if micro_batch is None else micro_batch
    other = micro_batch_size(config.batch_size, given, devices.replicas)  # the same division gives the steps
    steps, micro_batch = (given, other) if micro_batch is None else (other, micro_batch)
    config = config.with_accum_steps(steps)
    dry_run = DryRun(config, data, devices, micro_batch, directory, min(steps, MICRO_STEPS))
    dry_run.update()
    first_update = environment.job_seconds()
    timings, started = [dry_run.update()], time.perf_counter()
    while time.perf_counter() - started < SECONDS:
        timings.append(dry_run.update())
    micro_step, commit = map(statistics.median, zip(*timings, strict=True))
    dry_run.evaluate()
    dry_run.measure_workspace()
    memory = dry_run.finish()
    return {
        "micro_batch": micro_batch,
        "accum_steps": steps,
        "replicas": devices.replicas,
        "batch_norm": bool(dry_run.window.model.norms),
        "static_bytes": memory["tensor_static_bytes"],
        "peak_bytes": memory["tensor_peak_bytes"],
        "workspace_bytes": memory["workspace_bytes"],
        "rss_bytes": memory["rss_peak_bytes"],
        "examples_per_second": config.batch_size / (steps * micro_step + commit),
        "seconds_to_first_update": first_update + (steps - min(steps, MICRO_STEPS)) * micro_step,
    }


class DryRun:
    """The parts of jobs/train.py that hold memory, created in the same order.

    Args:
        micro_batch: examples per micro-step and replica.
        micro_steps: micro-steps per update.
    """

    def __init__(
        self, config: Config, data: Data, devices: Devices, micro_batch: int, directory: Path, micro_steps: int
    ):
        batch = micro_batch * devices.replicas
        self.window = build_window(config, data, total_steps(config, Epochs(config, data.train.size)), devices.strategy)
        with devices.strategy.scope():
            self.step = Step(self.window, devices.strategy, xla=devices.xla)
            self._evaluator = Evaluator(
                self.window.model,
                self.window.ema,
                build_means(config.loss),
                data,
                data.watched,
                batch,
                devices.strategy,
                build_split_metrics(config.loss),
            )
        self._checkpoints = Checkpoints(directory, self.window, config.checkpoint.keep)
        self.batches = train_stream(devices.strategy, data, batch=batch, seed=config.run.seed)
        self._micro_steps, self._pace, self._updates_pace = micro_steps, Pace(), Pace(WORTH_TOGETHER)
        self._together = False  # whether several updates in one call are compiled
        self.calls = 0.0  # number of compiled calls per update, for the last ones
        self.meter = Meter(xla=devices.xla)
        self.meter.start()

    def update(self) -> tuple[float, float]:
        """Makes an update. Returns the seconds of a micro-step and of the commit."""
        started, taken, self.calls = time.perf_counter(), 0, 1.0  # one call for the commit
        while taken < self._micro_steps:
            count = self._pace.next(self._micro_steps - taken)
            with self._pace.timed(count):
                self.step.accumulate(self.batches, count)
            taken, self.calls = taken + count, self.calls + 1
        tf.test.experimental.sync_devices()
        accumulated = time.perf_counter()
        self.step.commit(partial=True)["step"].numpy()
        return (accumulated - started) / self._micro_steps, time.perf_counter() - accumulated

    def updates(self, most: int) -> int:
        """Makes up to `most` updates, in one call if they are short, as in training. Returns how many."""
        count = self._updates_pace.next(most)
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

    def measure_workspace(self) -> None:
        """Makes an update of one micro-step, whose workspaces the meter measures."""

        def shortest_update() -> None:
            self.step.accumulate(self.batches, 1)
            self.step.commit(partial=True)

        self.meter.measure_workspace(shortest_update)

    def evaluate(self) -> None:
        """Evaluates the first batch."""
        calls = []

        def stop() -> bool:
            calls.append(True)
            return len(calls) > 1

        self._evaluator(stop=stop, report=lambda done, batches: None)

    def finish(self) -> dict[str, int | None]:
        """Writes the last and the best checkpoint, and reads the meter."""
        with self._checkpoints:
            self._checkpoints.save()
            self._checkpoints.save_if_best(loss=0.0, accuracy=None)
        return self.meter.read()
