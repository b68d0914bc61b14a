"""Every piece of memory that is handed out while some work is done, as TensorFlow's profiler writes it down."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XLine, XPlane, XSpace  # not public; what the profiler writes

from accumtrain.process.garbage import no_search_for_garbage

ALLOCATION, DEALLOCATION = "MemoryAllocation", "MemoryDeallocation"
EVERY_ALLOCATION = tf.profiler.experimental.ProfilerOptions(host_tracer_level=3)
MARK = "accumtrain:"
_Mark = tuple[int, str, str]  # its moment, its name, and the thread that has set it


@dataclass(frozen=True)
class Change:
    """A piece that is handed out or given back; its times in picoseconds.

    Attributes:
        size: bytes handed out.
        asked: bytes asked for.
        operation: name of the operation that runs then on that thread; None if none does.
        operation_ended: when that operation ended.
        thread: name and number of the thread. The name may be that of another one, which has ended.
    """

    moment: int
    taken: bool
    address: int
    size: int
    asked: int
    operation: str | None
    operation_ended: int | None
    thread: str


@dataclass
class Log:
    """All changes in the order of time, the moments of the marks that the work has set, and by which thread it did."""

    changes: list[Change] = field(default_factory=list)
    marks: list[tuple[int, str]] = field(default_factory=list)
    marked_by: str = ""


def mark(name: str) -> None:
    """Writes a moment of this name into the log that is being made."""
    with tf.profiler.experimental.Trace(MARK + name):
        pass


def log_allocations(work: Callable[[], Any]) -> Log:
    """Does `work` and returns what it takes of and gives back to the CPU's allocator.

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
        return _read(space)


def _read(space: XSpace) -> Log:
    log = Log()
    for plane in space.planes:
        for found in _changes_and_marks(plane):
            if isinstance(found, Change):
                log.changes.append(found)
            else:
                moment, name, log.marked_by = found
                log.marks.append((moment, name))
    log.changes.sort(key=lambda change: change.moment)
    log.marks.sort()
    return log


def _changes_and_marks(plane: XPlane) -> Iterator[Change | _Mark]:
    names = {key: found.name for key, found in plane.event_metadata.items()}
    stat_names = {key: found.name for key, found in plane.stat_metadata.items()}
    for line in plane.lines:
        yield from _of_thread(line, names, stat_names)


def _of_thread(line: XLine, names: dict[int, str], stat_names: dict[int, str]) -> Iterator[Change | _Mark]:
    thread = f"{line.name}/{line.id}"
    running: dict[str, int] = {}  # the end of the operation of each name that began last
    for event in sorted(line.events, key=lambda each: each.offset_ps):
        name, moment = names[event.metadata_id], line.timestamp_ns * 1000 + event.offset_ps
        if name in (ALLOCATION, DEALLOCATION):
            stats = {stat_names[stat.metadata_id]: stat for stat in event.stats}
            told = stats.get("tf_op")
            operation = None if told is None else told.str_value or stat_names[told.ref_value]
            address, size, asked = (stats[key].int64_value for key in ("addr", "allocation_bytes", "requested_bytes"))
            ended = None if operation is None else running.get(operation)
            yield Change(moment, name == ALLOCATION, address, size, asked, operation, ended, thread)
        elif name.startswith(MARK):
            yield moment, name.removeprefix(MARK).partition("#")[0], thread
        else:
            running[name.rpartition(":")[0]] = moment + event.duration_ps
