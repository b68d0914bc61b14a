"""The memory that operations take for themselves while they run: scratch of convolutions and other kernels.

It says nothing about a model's activations, and differs between CPUs: with AVX-512 oneDNN's convolutions take little,
without it TensorFlow's own take about as much as the processor's last cache holds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XLine, XPlane, XSpace  # not public; what the profiler writes

ALLOCATION, DEALLOCATION = "MemoryAllocation", "MemoryDeallocation"
EVERY_ALLOCATION = tf.profiler.experimental.ProfilerOptions(host_tracer_level=3)


@dataclass(frozen=True)
class Allocation:
    """A piece of memory that was handed out; its times in picoseconds.

    Attributes:
        ended: when it was given back; None if it was not.
        operation_ended: when the operation ended that took it; None if none did.
    """

    size: int
    began: int
    ended: int | None
    operation_ended: int | None

    @property
    def is_workspace(self) -> bool:
        """Whether the operation that took it gave it back before its own end."""
        return self.ended is not None and self.operation_ended is not None and self.ended <= self.operation_ended


def workspace_at_peak(work: Callable[[], Any]) -> int:
    """Bytes by which workspaces raise the peak of what `work` allocates on the CPU.

    Raises:
        tf.errors.OpError: a profiler runs in this process already, or its file can't be written.
        OSError: there is no folder for temporary files.
    """
    allocations = list(_allocations(work))
    return peak_bytes(allocations) - peak_bytes([each for each in allocations if not each.is_workspace])


def peak_bytes(allocations: list[Allocation]) -> int:
    """The most bytes held at any moment."""
    changes = [(each.began, each.size) for each in allocations]
    changes += [(each.ended, -each.size) for each in allocations if each.ended is not None]
    held = peak = 0
    for _, change in sorted(changes):  # what is given back at a moment comes before what is taken
        held += change
        peak = max(peak, held)
    return peak


def _allocations(work: Callable[[], Any]) -> Iterator[Allocation]:
    with tempfile.TemporaryDirectory(prefix="accumtrain-profile-") as folder:
        with tf.profiler.experimental.Profile(folder, EVERY_ALLOCATION):
            work()
        (path,) = Path(folder).glob("**/*.xplane.pb")
        space = XSpace.FromString(path.read_bytes())
    events = sorted((each for plane in space.planes for each in _events(plane)), key=lambda each: each[0])
    held: dict[int, tuple[int, int, int | None]] = {}
    for moment, name, stats, operation_ended in events:
        if name == ALLOCATION:
            held[stats["addr"]] = stats["allocation_bytes"], moment, operation_ended
        elif taken := held.pop(stats["addr"], None):
            yield Allocation(*taken[:2], ended=moment, operation_ended=taken[2])
    for size, began, operation_ended in held.values():
        yield Allocation(size, began, None, operation_ended)


def _events(plane: XPlane) -> Iterator[tuple[int, str, dict[str, Any], int | None]]:
    """Time, name, statistics of allocations and deallocations, and the end of the operation that runs then."""
    names = {key: found.name for key, found in plane.event_metadata.items()}
    stat_names = {key: found.name for key, found in plane.stat_metadata.items()}
    for line in plane.lines:
        yield from _events_of_thread(line, names, stat_names)


def _events_of_thread(
    line: XLine, names: dict[int, str], stat_names: dict[int, str]
) -> Iterator[tuple[int, str, dict[str, Any], int | None]]:
    running: dict[str, int] = {}  # the end of the operation of each name that began last
    for event in sorted(line.events, key=lambda each: each.offset_ps):
        name, moment = names[event.metadata_id], line.timestamp_ns * 1000 + event.offset_ps
        if name in (ALLOCATION, DEALLOCATION):
            stats = {stat_names[stat.metadata_id]: stat for stat in event.stats}
            operation = stats.get("tf_op")
            ended = None if operation is None else running.get(operation.str_value or stat_names[operation.ref_value])
            numbers = {key: stats[key].int64_value for key in ("addr", "allocation_bytes")}
            yield moment, name, numbers, ended
        else:
            running[name.rpartition(":")[0]] = moment + event.duration_ps
