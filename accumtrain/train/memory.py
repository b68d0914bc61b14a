"""Memory of a run in bytes: of its state by kind, and at the peak.

TensorFlow's allocator and the operating system tell the peak. Activations are what it has beyond the state: with them
the scratch memory that operations take while they run.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import tensorflow as tf

from accumtrain.console import format_bytes
from accumtrain.engine.runtime import Runtime, TensorFlowRuntime
from accumtrain.engine.window import Window
from accumtrain.process import environment

CPU = "CPU:0"
STATUS = Path("/proc/self/status")  # of Linux


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
    """A meter of a run's memory on its device, as summary.json reports it.

    A CPU's tensors are counted only by the allocator that `process.environment.prepare` chooses.

    Args:
        runtime: what computes; None is TensorFlow's.
    """

    def __init__(self, runtime: Runtime | None = None) -> None:
        self._runtime = runtime or TensorFlowRuntime()
        gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
        self.devices = gpus or ([CPU] if environment.counts_bytes_on_cpu() else [])
        self.static = 0

    def start(self) -> None:
        """Take what is allocated now as static (weights, buffers, optimizer state), and reset the peak."""
        self.static = self._sum("current")
        for device in self.devices:
            tf.config.experimental.reset_memory_stats(device)

    def read(self) -> dict[str, int | None]:
        """Return the bytes of tensors at the peak and when static, over all devices, and the peak resident memory.

        A value that is not measured is None. peak_by_compiler: the peak is planned by a compiler, not measured.
        """
        static, peak = self._read_static_and_peak()
        return {
            "tensor_peak_bytes": peak,
            "tensor_static_bytes": static,
            "rss_peak_bytes": _rss_peak(),
            "peak_by_compiler": self._runtime.plans_bytes,
        }

    def _read_static_and_peak(self) -> tuple[int | None, int | None]:
        if (counted := self._runtime.count_bytes()) is not None:
            return counted
        return (self.static, self._sum("peak")) if self.devices else (None, None)

    def _sum(self, kind: str) -> int:
        return sum(tf.config.experimental.get_memory_info(device)[kind] for device in self.devices)


def activation_bytes(memory: Mapping[str, int | None]) -> int | None:
    """Return the bytes at the peak beyond the static ones; None if either is missing. `memory` is of `Meter.read`."""
    peak, static = (memory.get(f"tensor_{kind}_bytes") for kind in ("peak", "static"))
    return None if peak is None or static is None else peak - static


def at_peak(memory: Mapping[str, int | None]) -> str:
    """The tensors at the peak and their kinds, in words; `memory` is as Meter reads it."""
    peak, static = (memory.get(f"tensor_{kind}_bytes") for kind in ("peak", "static"))
    if peak is None or static is None:
        return f"no figure for tensors: nothing was computed, or {environment.ALLOCATOR}=true is not in the environment"
    by = " by the compiler" if memory.get("peak_by_compiler") else ""
    kinds = f"state {format_bytes(static)}, activations {format_bytes(peak - static)}"
    return f"{format_bytes(peak)} of tensors at peak{by}: {kinds}"


def _rss_peak() -> int:
    """Return the peak resident memory in bytes, of this process alone.

    `getrusage` of Linux also counts the memory that its parent had at its start.
    """
    told = STATUS.read_text(encoding="utf-8").splitlines() if STATUS.exists() else []
    if line := next((line for line in told if line.startswith("VmHWM:")), ""):  # gVisor has none
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux kilobytes
