"""Micro-steps and updates of a model, each measured: seconds, and memory over what is always there.

Import it before TensorFlow: it settles the allocator as a run does.
"""

from __future__ import annotations

import multiprocessing
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from texts import Texts
from workbench import compose, timed

from accumtrain.config.schema import Config
from accumtrain.devices.config import CpuConfig
from accumtrain.process import environment

CPU = CpuConfig()
environment.prepare(CPU)

import tensorflow as tf  # noqa: E402
from asked import bytes_asked_at_peak  # noqa: E402

from accumtrain.devices.resolve import resolve_devices  # noqa: E402
from accumtrain.engine.losses import Batch, accuracy, cross_entropy  # noqa: E402
from accumtrain.engine.step import Step  # noqa: E402
from accumtrain.engine.window import Window  # noqa: E402
from accumtrain.fields import MASKED, NEXT  # noqa: E402
from accumtrain.measure.flops import count_flops  # noqa: E402
from accumtrain.models.build import build_model  # noqa: E402
from accumtrain.models.layers import ModelSpec  # noqa: E402
from accumtrain.tasks.texts.tokens import token_cross_entropy  # noqa: E402
from accumtrain.train.build import build_optimizer  # noqa: E402

MB = 2**20
PROCESSES = 3  # of a peak: the order in which threads free memory, and so its packing, differs
STRATEGY = resolve_devices(CPU).strategy


class Peak(NamedTuple):
    """MB over static that the allocator has handed out at the peak of a micro-step, and MB asked of it."""

    handed_out: float
    asked: float


class Measured(NamedTuple):
    """Seconds by the clock and of the processor; the allocator's peak over what was there before, in bytes."""

    seconds: float
    cpu_seconds: float
    bytes: int


@dataclass(frozen=True)
class Images:
    """Normal noise as images, with classes in turn."""

    shape: tuple[int, int, int]
    classes: int

    def examples(self, count: int) -> Batch:
        """Return a batch: the same bits each time."""
        return {
            "inputs": tf.random.stateless_normal([count, *self.shape], [0, 1]),
            "targets": tf.range(count) % self.classes,
            "weight": tf.ones([count]),
        }


class MicroStep:
    """A model with buffers, and the examples of its batches."""

    def __init__(self, config: Config, data: Images | Texts):
        self._data = data
        per_token = isinstance(data, Texts) and data.task != "classify"
        self.window = Window(
            build_model(config.model, spec_of(data, config.precision)),
            build_optimizer(config.optim),
            loss=token_cross_entropy if per_token else cross_entropy,
            metrics={} if per_token else {"accuracy": accuracy},
            schedule=config.schedule.build(1),
            seed=11,
            micro_steps=2,
            measures_noise=config.log.noise,
        )
        self._step = Step(self.window)

    def run(self, batch: int) -> Measured:
        """One micro-step on a batch that is already there; its gradient is added to the buffers."""
        return self._measured(batch, lambda batches: self._step.accumulate(batches, 1))

    def update(self, batch: int, micro_steps: int) -> Measured:
        """A whole update of micro-steps on a batch that is already there."""

        def work(batches: Iterator) -> None:
            self._step.accumulate(batches, micro_steps)
            self._step.commit(partial=True)

        return self._measured(batch, work)

    def update_on(self, batches: Iterator) -> dict[str, Any]:
        """Make an update of the next batch. Return the scalars of its commit."""
        self._step.accumulate(batches, 1)
        return self._step.commit(partial=True)

    def flops(self, batch: int) -> int:
        """Return the floating-point operations of a micro-step, replays included."""
        return count_flops(self._step.prepare(self._batches(batch)).graph, batch)

    def bytes_asked(self, batch: int) -> int:
        """What a micro-step asks of the allocator at its peak."""
        batches = self._batches(batch)
        return bytes_asked_at_peak(lambda: self._step.accumulate(batches, 1))

    def _batches(self, batch: int) -> Iterator:
        options = tf.data.Options()
        options.autotune.enabled = False  # an iterator that goes would wait for its thread, seconds after a minute
        return iter(tf.data.Dataset.from_tensors(batch_of(self._data, batch)).repeat().with_options(options))

    def _measured(self, batch: int, work: Callable[[Iterator], None]) -> Measured:
        batches = self._batches(batch)
        tf.config.experimental.reset_memory_stats("CPU:0")
        static = tf.config.experimental.get_memory_info("CPU:0")["current"]

        def until_done() -> None:
            work(batches)
            tf.test.experimental.sync_devices()

        taken = timed(until_done)
        return Measured(*taken, tf.config.experimental.get_memory_info("CPU:0")["peak"] - static)


def peaks(data: Images | Texts, batches: list[int], *overrides: str) -> list[Peak]:
    """Return the peak of a micro-step with Adafactor for each size of a batch: medians over processes."""
    spawn = multiprocessing.get_context("spawn")
    found = []
    for _ in range(PROCESSES):
        with ProcessPoolExecutor(1, spawn) as process:
            found.append(process.submit(_peaks, data, batches, *overrides).result())
    return [Peak(*map(statistics.median, zip(*of_batch, strict=True))) for of_batch in zip(*found, strict=True)]


def _peaks(data: Images | Texts, batches: list[int], *overrides: str) -> list[Peak]:
    run, found = MicroStep(compose("optim=adafactor", *overrides), data), []
    for batch in batches:
        run.run(batch)  # traces
        handed_out = max(run.run(batch).bytes for _ in range(3))
        found.append(Peak(handed_out / MB, run.bytes_asked(batch) / MB))
    return found


def spec_of(data: Images | Texts, precision: str, seed: int = 3) -> ModelSpec:
    """Return what a model for this data is built from."""
    if isinstance(data, Images):
        return ModelSpec(data.shape, data.classes, precision, seed)
    vocabulary, tells = data.vocabulary, {"masked_tokens": MASKED, "next_token": NEXT}.get(data.task)
    return ModelSpec(
        (data.tokens,), data.outputs, precision, seed, inputs=("tokens",), vocabulary=vocabulary, tells=tells
    )


def batch_of(data: Images | Texts, count: int) -> Batch:
    """Return the same examples each time, as a window takes them."""
    if isinstance(data, Images):
        return data.examples(count)
    found = {name: tf.constant(values) for name, values in data.examples(count).items()}
    inputs = {name: found.pop(name) for name in ("tokens", "positions") if name in found}
    return {"inputs": inputs if len(inputs) > 1 else inputs["tokens"], **found}
