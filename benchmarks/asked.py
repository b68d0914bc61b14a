"""What a piece of work asks of the CPU's allocator at its peak, beside what it is given.

The allocator hands out a free piece whole when that is up to twice too large, so what it reports moves from one build
of a graph to the next; what was asked for does not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace  # not public; what the profiler writes


def bytes_asked_at_peak(work: Callable[[], Any]) -> int:
    """The most that was asked for and not yet freed at any moment of `work`, of what it asked for itself."""
    with tempfile.TemporaryDirectory() as folder:
        with tf.profiler.experimental.Profile(folder, tf.profiler.experimental.ProfilerOptions(host_tracer_level=3)):
            work()
        (path,) = Path(folder).glob("**/*.xplane.pb")
        space = XSpace.FromString(path.read_bytes())
    held: dict[int, int] = {}
    now = peak = 0
    for _, name, stats in sorted(_allocations(space), key=lambda event: event[0]):
        if name == "MemoryAllocation":
            held[stats["addr"]] = stats["requested_bytes"]
            now += stats["requested_bytes"]
            peak = max(peak, now)
        else:
            now -= held.pop(stats["addr"], 0)
    return peak


def _allocations(space: XSpace) -> Iterator[tuple[int, str, dict[str, int]]]:
    """Time in picoseconds, name and statistics of each allocation and deallocation."""
    for plane in space.planes:
        names = {key: found.name for key, found in plane.event_metadata.items()}
        stat_names = {key: found.name for key, found in plane.stat_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                if names[event.metadata_id] in ("MemoryAllocation", "MemoryDeallocation"):
                    stats = {stat_names[stat.metadata_id]: stat.int64_value for stat in event.stats}
                    yield line.timestamp_ns * 1000 + event.offset_ps, names[event.metadata_id], stats
