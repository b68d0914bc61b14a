"""Memory of a run in bytes: of its state by kind, at the peak, and the workspace of kernels.

TensorFlow's allocator and the operating system tell the peak. Its profiler writes down each piece that is handed out.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XPlane, XSpace  # not public; what the profiler writes

from accumtrain.console import format_bytes, warn
from accumtrain.engine.runtime import Runtime, TensorFlowRuntime
from accumtrain.engine.window import Window
from accumtrain.errors import first_line
from accumtrain.process import environment
from accumtrain.process.environment import gc_disabled

# ---- allocations, as the profiler writes them down -------------------------------------------------------------------

ALLOCATION, DEALLOCATION = "MemoryAllocation", "MemoryDeallocation"
EVERY_ALLOCATION = tf.profiler.experimental.ProfilerOptions(host_tracer_level=3)


@dataclass(frozen=True)
class Allocation:
    """A piece of memory that was handed out; its times in picoseconds.

    Attributes:
        size: bytes handed out.
        asked: bytes asked for.
        ended: when it was given back; None if it was not.
        operation_ended: when the operation ended that ran then on that thread; None if none did.
    """

    size: int
    asked: int
    began: int
    ended: int | None
    operation_ended: int | None

    @property
    def is_workspace(self) -> bool:
        """Return whether the operation gave it back before its own end."""
        return self.ended is not None and self.operation_ended is not None and self.ended <= self.operation_ended


def log_allocations(work: Callable[[], Any]) -> list[Allocation]:
    """Do `work`. Return what it takes of the CPU's allocator.

    Raises:
        tf.errors.OpError: a profiler runs in this process already, or its file can't be written.
        OSError: there is no folder for temporary files.
    """
    with tempfile.TemporaryDirectory(prefix="accumtrain-profile-") as folder:
        with tf.profiler.experimental.Profile(folder, EVERY_ALLOCATION):
            work()
        (path,) = Path(folder).glob("**/*.xplane.pb")
        space = XSpace.FromString(path.read_bytes())
    allocations, held = list[Allocation](), dict[int, Allocation]()
    with gc_disabled():  # it takes as long as reading a log, which leaves none
        changes = [change for plane in space.planes for change in _changes(plane)]
        for moment, address, taken in sorted(changes, key=lambda change: change[0]):
            if taken is not None:
                held[address] = taken
            elif address in held:  # else it was taken before
                allocations.append(replace(held.pop(address), ended=moment))
    return [*allocations, *held.values()]


def _changes(plane: XPlane) -> Iterator[tuple[int, int, Allocation | None]]:
    """Yield moment, address and piece of what is handed out; None in the place of one that is given back."""
    names = {key: found.name for key, found in plane.event_metadata.items()}
    stat_names = {key: found.name for key, found in plane.stat_metadata.items()}
    for line in plane.lines:  # of each thread
        running: dict[str, int] = {}  # the end of the operation of each name that began last
        for event in sorted(line.events, key=lambda event: event.offset_ps):
            name, moment = names[event.metadata_id], line.timestamp_ns * 1000 + event.offset_ps
            if name not in (ALLOCATION, DEALLOCATION):
                running[name.rpartition(":")[0]] = moment + event.duration_ps
                continue
            stats = {stat_names[stat.metadata_id]: stat for stat in event.stats}
            told = stats.get("tf_op")
            ended = None if told is None else running.get(told.str_value or stat_names[told.ref_value])
            address, size, asked = (stats[key].int64_value for key in ("addr", "allocation_bytes", "requested_bytes"))
            yield moment, address, Allocation(size, asked, moment, None, ended) if name == ALLOCATION else None


# ---- workspace: the scratch that operations take for themselves while they run ---------------------------------------
#
# It says nothing about a model's activations, and differs between CPUs: with AVX-512 oneDNN's convolutions take
# little, without it TensorFlow's own take about as much as the processor's last cache holds.


def workspace_at_peak(work: Callable[[], Any]) -> int:
    """Bytes by which workspaces raise the peak of what `work` allocates on the CPU. Raise as `log_allocations`."""
    allocations = log_allocations(work)
    kept = [allocation for allocation in allocations if not allocation.is_workspace]
    return peak_bytes(allocations) - peak_bytes(kept)


def peak_bytes(allocations: list[Allocation]) -> int:
    """Return the most bytes held at any moment."""
    changes = [(tensor.began, tensor.size) for tensor in allocations]
    changes += [(tensor.ended, -tensor.size) for tensor in allocations if tensor.ended is not None]
    held = peak = 0
    for _, change in sorted(changes):  # what is given back at a moment comes before what is taken
        held += change
        peak = max(peak, held)
    return peak


# ---- bytes of a run --------------------------------------------------------------------------------------------------

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
        runtime: what computes; None is TensorFlow's. Where XLA compiles the micro-steps each is one operation, so its
            activations can't be told from workspace.
    """

    def __init__(self, runtime: Runtime | None = None) -> None:
        self._runtime = runtime or TensorFlowRuntime()
        gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
        self.devices = gpus or ([CPU] if environment.counts_bytes_on_cpu() else [])
        self.static = 0
        self._workspace: int | None = None

    def start(self) -> None:
        """Take what is allocated now as static (weights, buffers, optimizer state), and reset the peak."""
        self.static = self._sum("current")
        for device in self.devices:
            tf.config.experimental.reset_memory_stats(device)

    def measure_workspace(self, work: Callable[[], Any]) -> None:
        """Do `work`, and measure by how much operations' own scratch memory raises its peak, on a CPU.

        `work` is what the peak comes from, such as a micro-step. Where it can't be measured it is not done. No run ends
        for it: a failure, such as of another profiler or a full disk, is a warning.
        """
        if self.devices != [CPU] or self._runtime.xla:
            return
        try:
            self._workspace = workspace_at_peak(work)
        except (tf.errors.OpError, OSError) as error:
            warn(f"the workspace of kernels is not measured: {first_line(error)}")

    def read(self) -> dict[str, int | None]:
        """Return the bytes of tensors at the peak and when static, over all devices, and the peak resident memory.

        workspace_bytes is the part of the peak that is operations' own scratch memory. What is not measured is None.
        peak_by_compiler: the peak is what a compiler has planned with, not what was measured.
        """
        static, peak = self._read_static_and_peak()
        known = None if peak is None or self._workspace is None else min(self._workspace, peak - self.static)
        return {
            "tensor_peak_bytes": peak,
            "tensor_static_bytes": static,
            "workspace_bytes": known,
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
    """Return the bytes of the peak beyond the static ones and, if it was measured, workspace; of what Meter reads."""
    peak, static, workspace = (memory.get(f"{kind}_bytes") for kind in ("tensor_peak", "tensor_static", "workspace"))
    return None if peak is None or static is None else peak - static - (workspace or 0)


def at_peak(memory: Mapping[str, int | None]) -> str:
    """The tensors at the peak and their kinds, in words; `memory` is as Meter reads it."""
    peak, static, workspace = (memory.get(f"{kind}_bytes") for kind in ("tensor_peak", "tensor_static", "workspace"))
    activations = activation_bytes(memory)
    if peak is None or static is None or activations is None:
        return f"no figure for tensors: nothing was computed, or {environment.ALLOCATOR}=true is not in the environment"
    kinds = [f"state {format_bytes(static)}", f"activations {format_bytes(activations)}"]
    kinds += [] if workspace is None else [f"workspace {format_bytes(workspace)}"]
    by = " by the compiler" if memory.get("peak_by_compiler") else ""
    return f"{format_bytes(peak)} of tensors at peak{by}: {', '.join(kinds)}"


def _rss_peak() -> int:
    """Return that of this process alone: `getrusage` of Linux counts what its parent had taken at its start, too."""
    told = STATUS.read_text(encoding="utf-8").splitlines() if STATUS.exists() else []
    if line := next((line for line in told if line.startswith("VmHWM:")), ""):  # gVisor has none
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux kilobytes
