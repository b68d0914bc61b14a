"""What a run would take: its real window, optimizer, data, evaluation and checkpoint, for a few short updates."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from accumtrain import environment
from accumtrain.config import Config, micro_batch_size, total_steps
from accumtrain.data.pipeline import train_batches
from accumtrain.data.source import Data
from accumtrain.devices import Devices, resolve
from accumtrain.engine.build import build_window
from accumtrain.engine.checkpoint import Checkpoints
from accumtrain.engine.evaluate import Evaluator
from accumtrain.engine.memory import Meter
from accumtrain.engine.step import Step

MICRO_STEPS = 2  # of a window; the second one meets a buffer that is in use
SECONDS = 2.0  # updates are timed for so long, at least one; the first, which traces and compiles, is not


def measure(config: Config, data: Data, micro_batch: int, directory: Path) -> dict[str, Any]:
    """Builds the run of `config` with `micro_batch` examples per micro-step and replica, and tries it.

    Args:
        config: accum.steps is not looked at, `micro_batch` decides it.
        directory: an empty folder for checkpoints.

    Returns:
        accum_steps, replicas, static_bytes, peak_bytes, rss_bytes, examples_per_second (of whole updates of
        accum_steps micro-steps), seconds_to_first_update (from the start of the process).

    Raises:
        ConfigError: batch_size does not divide by micro_batch and replicas.
        tf.errors.ResourceExhaustedError: it does not fit.
    """
    devices = resolve(config.device)
    steps = micro_batch_size(config.batch_size, micro_batch, devices.replicas)  # the quotient is the steps here
    config = replace(config, accum=replace(config.accum, steps=steps))
    probe = _Probe(config, data, devices, micro_batch * devices.replicas, directory)
    probe.update()
    first_update = time.time() - environment.job_started()
    timings, started = [probe.update()], time.perf_counter()
    while time.perf_counter() - started < SECONDS:
        timings.append(probe.update())
    micro_step, commit = map(statistics.median, zip(*timings, strict=True))
    probe.evaluate()
    memory = probe.finish()
    return {
        "accum_steps": steps,
        "replicas": devices.replicas,
        "static_bytes": memory["tensor_static_bytes"],
        "peak_bytes": memory["tensor_peak_bytes"],
        "rss_bytes": memory["rss_peak_bytes"],
        "examples_per_second": config.batch_size / (steps * micro_step + commit),
        "seconds_to_first_update": first_update + (steps - min(steps, MICRO_STEPS)) * micro_step,
    }


class _Probe:
    """The parts of jobs/train.py that hold memory, in its order."""

    def __init__(self, config: Config, data: Data, devices: Devices, batch: int, directory: Path):
        self._window = build_window(config, data, total_steps(config, data.train.size), devices.strategy)
        with devices.strategy.scope():
            self._step = Step(self._window, devices.strategy)
            self._evaluator = Evaluator(self._window.model, self._window.ema, data, batch, devices.strategy)
        self._checkpoints = Checkpoints(directory, self._window, config.checkpoint.keep)
        dataset = train_batches(data, batch=batch, first=0, seed=config.run.seed)
        self._batches = iter(devices.strategy.experimental_distribute_dataset(dataset))
        self._micro_steps = min(self._window.micro_steps, MICRO_STEPS)
        self._meter = Meter()
        self._meter.start()

    def update(self) -> tuple[float, float]:
        """Returns the seconds of a micro-step and of the commit."""
        started = time.perf_counter()
        for _ in range(self._micro_steps):
            self._step.accumulate(self._batches, tf.constant(1))
        tf.test.experimental.sync_devices()
        accumulated = time.perf_counter()
        self._step.commit()["step"].numpy()
        return (accumulated - started) / self._micro_steps, time.perf_counter() - accumulated

    def evaluate(self) -> None:
        """The first batch of an evaluation; the stop ends it before the second."""
        asked = []

        def stop() -> bool:
            asked.append(True)
            return len(asked) > 1

        self._evaluator(stop=stop, report=lambda done, batches: None)

    def finish(self) -> dict[str, int]:
        """Writes the last and the best checkpoint, and reads the meter."""
        self._checkpoints.save()
        self._checkpoints.save_if_best(loss=0.0, accuracy=0.0)
        return self._meter.read()
