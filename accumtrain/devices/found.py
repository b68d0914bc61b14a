"""The devices that a run computes on, as a resolver returns them, and settings of TensorFlow made once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from accumtrain.devices.config import DeviceConfig
from accumtrain.engine.runtime import Runtime, TensorFlowRuntime
from accumtrain.engine.sums import values_of_workers
from accumtrain.errors import ConfigError

OTHER_PROCESS = "for a sweep over devices add hydra/launcher=joblib, each job then has a process of its own"


@dataclass(frozen=True)
class Devices:
    """The devices of a run.

    Attributes:
        description: the devices in one line, for the user.
        runtime: what computes there.
        worker, workers: index of this process, and number of processes.
        watch: the context of what workers do together (see worker_link.py).
    """

    strategy: tf.distribute.Strategy
    description: str
    runtime: Runtime
    worker: int = 0
    workers: int = 1
    watch: AbstractContextManager[Any] = field(default_factory=nullcontext)

    @property
    def xla(self) -> bool:
        """Return whether XLA compiles the micro-steps."""
        return self.runtime.xla

    @property
    def replicas(self) -> int:
        return self.runtime.replicas

    @property
    def chief(self) -> bool:
        """Return whether this is the one process that writes and prints."""
        return self.worker == 0

    def values_of_workers(self, value: int) -> list[int]:
        """Return the value of each worker in order, once all of them have asked for it."""
        return values_of_workers(self.strategy, self.worker, self.workers, value)


def make_devices(
    config: DeviceConfig,
    strategy: tf.distribute.Strategy,
    description: str,
    *,
    on_gpus: bool = False,
    xla_by_itself: bool = False,
) -> Devices:
    """Return the `Devices` of one process, with XLA as device.xla says.

    Args:
        xla_by_itself: whether device.xla=auto means true. It does on a TPU, which runs nothing else. On a CPU, XLA is
            half as fast as oneDNN (docs/kernels.md). On a GPU it is the faster one, but job=verify can't compare its
            bits (docs/gpu.md).

    Raises:
        ConfigError: device.tensor_float_32=true without a GPU.
    """
    if config.tensor_float_32 and not on_gpus:
        raise ConfigError(
            f"device.tensor_float_32=true: rounds products of GPUs, and there is none ({description}); leave it out"
        )
    xla = xla_by_itself if config.xla == "auto" else bool(config.xla)
    rounded = ", TensorFloat-32" if config.tensor_float_32 else ""
    return Devices(strategy, description + rounded + (", XLA" if xla else ""), TensorFlowRuntime(strategy, xla=xla))


def set_once(
    setter: Callable[..., None],
    *arguments: Any,
    remedy: str = OTHER_PROCESS,
) -> None:
    """Call a setter of tf.config. It can't change devices any more after TensorFlow has used them.

    Raises:
        ConfigError: TensorFlow has used the devices with other settings. The message ends with the remedy.
    """
    try:
        setter(*arguments)
    except RuntimeError as error:
        raise ConfigError(f"the devices of a process can't change once TensorFlow has used them; {remedy}") from error
