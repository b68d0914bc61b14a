"""Every piece of memory that is handed out while some work is done, as TensorFlow's profiler writes it down."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XLine, XPlane, XSpace  # not public; what the profiler writes

from accumtrain.process.garbage import no_search_for_garbage

ALLOCATION, DEALLOCATION = "MemoryAllocation", "MemoryDeallocation"
EVERY_ALLOCATION = tf.profiler.experimental.ProfilerOptions(host_tracer_level=3)


@dataclass(frozen=True)
class Change:
    """A piece that is handed out or given back; its times in picoseconds.

    Attributes:
        size: bytes handed out.
        asked: bytes asked for.
        operation_ended: when the operation ended that ran then on that thread; None if none did.
    """

    moment: int
    taken: bool
    address: int
    size: int
    asked: int
    operation_ended: int | None


def log_allocations(work: Callable[[], Any]) -> list[Change]:
    """Does `work` and returns what it takes of and gives back to the CPU's allocator, in the order of time.

    Raises:
        tf.errors.OpError: a profiler runs in this process already, or its file can't be written.
        OSError: there is no folder for temporary files.
    """
    with tempfile.TemporaryDirectory(prefix="accumtrain-profile-") as folder:
        with tf.profiler.experimental.Profile(folder, EVERY_ALLOCATION):
            work()
        (path,) = Path(folder).glob("**/*.xplane.pb")
        space = XSpace.FromString(path.read_bytes())
    with no_search_for_garbage():  # it takes as long as reading a log, which leaves none
        changes = [change for plane in space.planes for change in _changes(plane)]
    return sorted(changes, key=lambda change: change.moment)


def _changes(plane: XPlane) -> Iterator[Change]:
    names = {key: found.name for key, found in plane.event_metadata.items()}
    stat_names = {key: found.name for key, found in plane.stat_metadata.items()}
    for line in plane.lines:
        yield from _of_thread(line, names, stat_names)


def _of_thread(line: XLine, names: dict[int, str], stat_names: dict[int, str]) -> Iterator[Change]:
    running: dict[str, int] = {}  # the end of the operation of each name that began last
    for event in sorted(line.events, key=lambda each: each.offset_ps):
        name, moment = names[event.metadata_id], line.timestamp_ns * 1000 + event.offset_ps
        if name not in (ALLOCATION, DEALLOCATION):
            running[name.rpartition(":")[0]] = moment + event.duration_ps
            continue
        stats = {stat_names[stat.metadata_id]: stat for stat in event.stats}
        told = stats.get("tf_op")
        ended = None if told is None else running.get(told.str_value or stat_names[told.ref_value])
        address, size, asked = (stats[key].int64_value for key in ("addr", "allocation_bytes", "requested_bytes"))
        yield Change(moment, name == ALLOCATION, address, size, asked, ended)
