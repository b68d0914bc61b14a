"""What the benchmarks share: configurations composed as the command line composes them, and one measured micro-step.

Import it before TensorFlow: it settles the allocator as a run does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from accumtrain.config.schema import Config
from accumtrain.kinds.devices import CpuConfig
from accumtrain.process import environment

CPU = CpuConfig()
environment.prepare(CPU)

import tensorflow as tf  # noqa: E402
from asked import bytes_asked_at_peak  # noqa: E402

from accumtrain.devices.resolve import resolve  # noqa: E402
from accumtrain.engine.step import Step  # noqa: E402
from accumtrain.engine.window import Window  # noqa: E402
from accumtrain.models.build_model import build_model  # noqa: E402
from accumtrain.models.spec import ModelSpec  # noqa: E402
from accumtrain.optim.build_optimizer import build_optimizer  # noqa: E402

MB = 2**20
STRATEGY = resolve(CPU).strategy


@dataclass
class MicroStep:
    """A model with buffers, and what its micro-steps or updates took."""

    config: Config
    shape: tuple[int, int, int]
    classes: int
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        spec = ModelSpec(self.shape, self.classes, self.config.precision, seed=3)
        self.window = Window(
            build_model(self.config.model, spec),
            build_optimizer(self.config.optim),
            schedule=self.config.schedule.build(1),
            seed=11,
            micro_steps=2,
        )
        self.step = Step(self.window, STRATEGY)

    def run(self, batch: int, timed: bool = True) -> None:
        """One micro-step on a batch that is already there; its gradient is added to the buffers."""
        self._measured(batch, timed, lambda batches: self.step.accumulate(batches, 1))

    def update(self, batch: int, micro_steps: int, timed: bool = True) -> None:
        """A whole update of micro-steps on a batch that is already there."""

        def work(batches: Iterator) -> None:
            self.step.accumulate(batches, micro_steps)
            self.step.commit(partial=True)

        self._measured(batch, timed, work)

    def bytes_asked(self, batch: int) -> int:
        """What a micro-step asks of the allocator at its peak."""
        batches = self._batches(batch)
        return bytes_asked_at_peak(lambda: self.step.accumulate(batches, 1))

    def _batches(self, batch: int) -> Iterator:
        return iter(tf.data.Dataset.from_tensors(examples(batch, self.shape, self.classes)).repeat())

    def _measured(self, batch: int, timed: bool, work: Callable[[Iterator], None]) -> None:
        batches = self._batches(batch)
        tf.config.experimental.reset_memory_stats("CPU:0")
        static = tf.config.experimental.get_memory_info("CPU:0")["current"]
        started, cpu_started = time.perf_counter(), time.process_time()
        work(batches)
        tf.test.experimental.sync_devices()
        if timed:
            self.seconds.append(time.perf_counter() - started)
            self.cpu_seconds.append(time.process_time() - cpu_started)
            self.bytes.append(tf.config.experimental.get_memory_info("CPU:0")["peak"] - static)


def examples(count: int, shape: Sequence[int], classes: int) -> dict[str, tf.Tensor]:
    """Normal noise as images, labels in turn: the same bits each time."""
    return {
        "image": tf.random.stateless_normal([count, *shape], [0, 1]),
        "label": tf.range(count) % classes,
        "weight": tf.ones([count]),
    }
