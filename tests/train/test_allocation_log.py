"""The log of what is allocated, by TensorFlow's own profiler: in which order, and beside which operation."""

from __future__ import annotations

import contextlib
from pathlib import Path

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

from accumtrain.train.memory import Change, log_allocations


def profile_of(threads):
    """A profile as TensorFlow writes it; events of a thread are (name, start and duration in ps, stats)."""
    space = XSpace()
    plane = space.planes.add()
    keys = {}

    def key(name, table):
        number = keys.setdefault(name, len(keys) + 1)
        table[number].name = name
        return number

    for number, (start_ns, events) in threads.items():
        line = plane.lines.add(id=number, name="worker", timestamp_ns=start_ns)
        for name, start_ps, duration_ps, stats in events:
            metadata = key(name, plane.event_metadata)
            event = line.events.add(metadata_id=metadata, offset_ps=start_ps, duration_ps=duration_ps)
            for stat_name, value in stats.items():
                stat = event.stats.add(metadata_id=key(stat_name, plane.stat_metadata))
                if isinstance(value, int):
                    stat.int64_value = value
                elif value.startswith("&"):  # a reference to a name that stands elsewhere
                    stat.ref_value = key(value[1:], plane.stat_metadata)
                else:
                    stat.str_value = value
    return space


def piece(address, operation=None):
    stats = {"addr": address, "allocation_bytes": 256, "requested_bytes": 200}
    return stats if operation is None else {"tf_op": operation, **stats}


def test_a_profile_is_read_in_the_order_of_time(monkeypatch):
    """Times of events count from the start of their thread's line, which is in nanoseconds."""
    space = profile_of(
        {
            7: (2, [
                ("MemoryDeallocation", 900, 0, piece(1, "&Conv")),
                ("Conv:Conv2D", 100, 400, {}),
                ("MemoryAllocation", 150, 0, piece(1, "Conv")),
            ]),
            8: (1, [
                ("MemoryAllocation", 1300, 0, piece(2)),
                ("MemoryAllocation", 1050, 0, piece(3, "Relu")),
            ]),
        }
    )  # fmt: skip

    @contextlib.contextmanager
    def profile(folder, options):
        yield
        Path(folder, "one.xplane.pb").write_bytes(space.SerializeToString())

    monkeypatch.setattr(tf.profiler.experimental, "Profile", profile)
    assert log_allocations(lambda: None) == [
        Change(2050, True, 3, 256, 200, None),
        Change(2150, True, 1, 256, 200, 2500),
        Change(2300, True, 2, 256, 200, None),
        Change(2900, False, 1, 256, 200, 2500),
    ]
