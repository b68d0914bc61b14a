"""What a piece of work asks of the CPU's allocator at its peak, beside what it is given.

The allocator hands out a free piece whole when that is up to twice too large, so what it reports moves from one build
of a graph to the next, and with all that the process has allocated before; what was asked for does not. TensorFlow's
profiler writes down each piece.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XPlane, XSpace  # not public; what the profiler writes

from accumtrain.process.environment import gc_disabled

ALLOCATION, DEALLOCATION = "MemoryAllocation", "MemoryDeallocation"
EVERY_ALLOCATION = tf.profiler.experimental.ProfilerOptions(host_tracer_level=3)


def bytes_asked_at_peak(work: Callable[[], Any], *, workspace: bool = True) -> int:
    """The most that was asked for and not yet freed at any moment of `work`, of what it asked for itself.

    Args:
        workspace: with the scratch memory that operations take while they run.
    """
    pieces = log_allocations(work)
    return peak_bytes([piece for piece in pieces if workspace or not piece.is_workspace])


@dataclass(frozen=True)
class Allocation:
    """A piece of memory that was handed out; its times are in picoseconds.

    Attributes:
        asked: bytes asked for.
        ended: when it was given back; None if it was not.
        operation_ended: when the operation ended that ran then on that thread; None if none did.
    """

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
            address, asked = (stats[key].int64_value for key in ("addr", "requested_bytes"))
            yield moment, address, Allocation(asked, moment, None, ended) if name == ALLOCATION else None


def peak_bytes(allocations: list[Allocation]) -> int:
    """Return the most bytes that were asked for and held at any moment."""
    changes = [(tensor.began, tensor.asked) for tensor in allocations]
    changes += [(tensor.ended, -tensor.asked) for tensor in allocations if tensor.ended is not None]
    held = peak = 0
    for _, change in sorted(changes):  # what is given back at a moment comes before what is taken
        held += change
        peak = max(peak, held)
    return peak
