"""Memory in bytes: of a run's state by kind, and as measured by TensorFlow's allocator and the operating system."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterable

import tensorflow as tf

from accumtrain.engine.window import Window
from accumtrain.process import environment


def tensor_bytes(variables: Iterable[tf.Variable]) -> int:
    """Bytes of the variables' values on one replica."""
    return sum(variable.shape.num_elements() * variable.dtype.size for variable in variables)


def state_bytes(window: Window) -> dict[str, int]:
    """Bytes by kind on one replica: weights, gradients, optimizer, batch_norm, ema."""
    return {
        "weights": tensor_bytes([*window.variables_, *window.model.frozen]),
        "gradients": tensor_bytes(window.gradients),
        "optimizer": tensor_bytes(window.optimizer.state),
        "batch_norm": tensor_bytes(v for norm in window.model.norms for v in (norm.moving_mean, norm.moving_variance)),
        "ema": tensor_bytes(window.ema.averages) if window.ema is not None else 0,
    }


class Meter:
    """Measures a run's memory on its device, as summary.json reports it.

    A CPU's tensors are counted only by the allocator that `process.environment.prepare` chooses.
    """

    def __init__(self) -> None:
        gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
        self.devices = gpus or (["CPU:0"] if environment.counts_bytes_on_cpu() else [])
        self.static = 0

    def start(self) -> None:
        """Takes what is allocated now as static (weights, buffers, optimizer state), and resets the peak."""
        self.static = sum(self._info(device)["current"] for device in self.devices)
        for device in self.devices:
            tf.config.experimental.reset_memory_stats(device)

    def read(self) -> dict[str, int | None]:
        """Bytes of tensors at the peak and when static, over all devices, and the process's peak resident memory.

        What is not counted is None.
        """
        return {
            "tensor_peak_bytes": sum(self._info(device)["peak"] for device in self.devices) if self.devices else None,
            "tensor_static_bytes": self.static if self.devices else None,
            "rss_peak_bytes": _rss_peak(),
        }

    @staticmethod
    def _info(device: str) -> dict[str, int]:
        return tf.config.experimental.get_memory_info(device)


def _rss_peak() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux kilobytes
