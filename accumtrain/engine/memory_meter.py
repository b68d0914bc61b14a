"""Memory in bytes: of a run's state by kind, and as measured by TensorFlow's allocator and the operating system."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from accumtrain.console import format_bytes, warn
from accumtrain.engine.window import Window
from accumtrain.engine.workspace import workspace_at_peak
from accumtrain.errors import first_line
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
    """Measures a run's memory on its device, as summary.json reports it.

    A CPU's tensors are counted only by the allocator that `process.environment.prepare` chooses.

    Args:
        xla: XLA compiles the micro-steps: each is one operation, so its activations can't be told from workspace.
    """

    def __init__(self, *, xla: bool = False) -> None:
        gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
        self.devices = gpus or ([CPU] if environment.counts_bytes_on_cpu() else [])
        self.static = 0
        self._workspace: int | None = None
        self._xla = xla

    def start(self) -> None:
        """Takes what is allocated now as static (weights, buffers, optimizer state), and resets the peak."""
        self.static = sum(self._info(device)["current"] for device in self.devices)
        for device in self.devices:
            tf.config.experimental.reset_memory_stats(device)

    def measure_workspace(self, work: Callable[[], Any]) -> None:
        """Does `work`, and measures by how much operations' own scratch memory raises its peak, on a CPU.

        `work` is what the peak comes from, such as a micro-step. Where it can't be measured it is not done. No run ends
        for it: a failure, such as of another profiler or a full disk, is a warning.
        """
        if self.devices != [CPU] or self._xla:
            return
        try:
            self._workspace = workspace_at_peak(work)
        except (tf.errors.OpError, OSError) as error:
            warn(f"the workspace of kernels is not measured: {first_line(error)}")

    def read(self) -> dict[str, int | None]:
        """Bytes of tensors at the peak and when static, over all devices, and the process's peak resident memory.

        workspace_bytes is by how much operations' own scratch memory raises the peak. What is not measured is None.
        """
        peak = sum(self._info(device)["peak"] for device in self.devices) if self.devices else None
        known = None if peak is None or self._workspace is None else min(self._workspace, peak - self.static)
        return {
            "tensor_peak_bytes": peak,
            "tensor_static_bytes": self.static if self.devices else None,
            "workspace_bytes": known,
            "rss_peak_bytes": _rss_peak(),
        }

    @staticmethod
    def _info(device: str) -> dict[str, int]:
        return tf.config.experimental.get_memory_info(device)


def activation_bytes(memory: Mapping[str, int | None]) -> int | None:
    """What the peak has beyond what is always there and, if it was measured, workspace; `memory` is as Meter reads."""
    peak, static, workspace = (memory.get(f"{kind}_bytes") for kind in ("tensor_peak", "tensor_static", "workspace"))
    return None if peak is None or static is None else peak - static - (workspace or 0)


def at_peak(memory: Mapping[str, int | None]) -> str:
    """The tensors at the peak and their kinds, in words; `memory` is as Meter reads it."""
    peak, static, workspace = (memory.get(f"{kind}_bytes") for kind in ("tensor_peak", "tensor_static", "workspace"))
    activations = activation_bytes(memory)
    if peak is None or static is None or activations is None:
        return "tensors are not counted on this device"
    kinds = [f"state {format_bytes(static)}", f"activations {format_bytes(activations)}"]
    kinds += [] if workspace is None else [f"workspace {format_bytes(workspace)}"]
    return f"{format_bytes(peak)} at peak: {', '.join(kinds)}"


def _rss_peak() -> int:
    """Of this process alone: on Linux `getrusage` counts what its parent had taken when it started this one, too."""
    told = STATUS.read_text(encoding="utf-8").splitlines() if STATUS.exists() else []
    if line := next((line for line in told if line.startswith("VmHWM:")), ""):  # gVisor has none
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux kilobytes
