"""Micro-steps and updates of a model, each measured: seconds, and memory over what is always there.

Import it before TensorFlow: it settles the allocator as a run does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from workbench import timed

from accumtrain.config.schema import Config
from accumtrain.devices.config import CpuConfig
from accumtrain.process import environment

CPU = CpuConfig()
environment.prepare(CPU)

import tensorflow as tf  # noqa: E402
from asked import bytes_asked_at_peak  # noqa: E402

from accumtrain.devices.resolve import resolve_devices  # noqa: E402
from accumtrain.engine.step import Step  # noqa: E402
from accumtrain.engine.window import Window  # noqa: E402
from accumtrain.models.build import build_model  # noqa: E402
from accumtrain.models.layers import ModelSpec  # noqa: E402
from accumtrain.train.build import build_optimizer  # noqa: E402

MB = 2**20
STRATEGY = resolve_devices(CPU).strategy


class Measured(NamedTuple):
    """Seconds by the clock and of the processor; the allocator's peak over what was there before, in bytes."""

    seconds: float
    cpu_seconds: float
    bytes: int


class MicroStep:
    """A model with buffers."""

    def __init__(self, config: Config, shape: tuple[int, int, int], classes: int):
        self._shape, self._classes = shape, classes
        spec = ModelSpec(shape, classes, config.precision, seed=3)
        self.window = Window(
            build_model(config.model, spec),
            build_optimizer(config.optim),
            schedule=config.schedule.build(1),
            seed=11,
            micro_steps=2,
        )
        self._step = Step(self.window, STRATEGY)

    def run(self, batch: int) -> Measured:
        """One micro-step on a batch that is already there; its gradient is added to the buffers."""
        return self._measured(batch, lambda batches: self._step.accumulate(batches, 1))

    def update(self, batch: int, micro_steps: int) -> Measured:
        """A whole update of micro-steps on a batch that is already there."""

        def work(batches: Iterator) -> None:
            self._step.accumulate(batches, micro_steps)
            self._step.commit(partial=True)

        return self._measured(batch, work)

    def bytes_asked(self, batch: int) -> int:
        """What a micro-step asks of the allocator at its peak."""
        batches = self._batches(batch)
        return bytes_asked_at_peak(lambda: self._step.accumulate(batches, 1))

    def _batches(self, batch: int) -> Iterator:
        return iter(tf.data.Dataset.from_tensors(examples(batch, self._shape, self._classes)).repeat())

    def _measured(self, batch: int, work: Callable[[Iterator], None]) -> Measured:
        batches = self._batches(batch)
        tf.config.experimental.reset_memory_stats("CPU:0")
        static = tf.config.experimental.get_memory_info("CPU:0")["current"]

        def until_done() -> None:
            work(batches)
            tf.test.experimental.sync_devices()

        taken = timed(until_done)
        return Measured(*taken, tf.config.experimental.get_memory_info("CPU:0")["peak"] - static)


def examples(count: int, shape: Sequence[int], classes: int) -> dict[str, tf.Tensor]:
    """Normal noise as images, labels in turn: the same bits each time."""
    return {
        "image": tf.random.stateless_normal([count, *shape], [0, 1]),
        "label": tf.range(count) % classes,
        "weight": tf.ones([count]),
    }
