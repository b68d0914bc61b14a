"""What a device's resolver has found."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from accumtrain.kinds.devices import DeviceConfig


@dataclass(frozen=True)
class Devices:
    """Where a run computes.

    Attributes:
        description: what was found, in one line.
        xla: does XLA compile micro-steps?
        worker, workers: which process of how many this is.
    """

    strategy: tf.distribute.Strategy
    description: str
    xla: bool
    worker: int = 0
    workers: int = 1

    @property
    def replicas(self) -> int:
        return self.strategy.num_replicas_in_sync

    @property
    def chief(self) -> bool:
        """The one process that writes and prints."""
        return self.worker == 0


def found(
    config: DeviceConfig,
    strategy: tf.distribute.Strategy,
    description: str,
    *,
    xla_by_itself: bool = False,
    worker: int = 0,
    workers: int = 1,
) -> Devices:
    """The devices, compiled for by XLA as device.xla says.

    Args:
        xla_by_itself: what device.xla=auto means: half as fast as oneDNN on a CPU (docs/bench.md), not measured on a
            GPU; a TPU runs nothing else.
    """
    xla = xla_by_itself if config.xla == "auto" else bool(config.xla)
    return Devices(strategy, description + (", XLA" if xla else ""), xla, worker, workers)
