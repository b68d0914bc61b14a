"""The log of allocations that tests and benchmarks read (benchmarks/asked.py)."""

import contextlib
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

from benchmarks.asked import Allocation, log_allocations, peak_bytes


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
    stats = {"addr": address, "requested_bytes": 200}
    return stats if operation is None else {"tf_op": operation, **stats}


def test_a_profile_says_when_each_piece_is_taken_and_given_back(monkeypatch):
    """Times of events count from the start of their thread's line, which is in nanoseconds."""
    space = profile_of(
        {
            7: (2, [
                ("MemoryDeallocation", 900, 0, piece(1, "&Conv")),
                ("Conv:Conv2D", 100, 400, {}),
                ("MemoryAllocation", 150, 0, piece(1, "Conv")),
                ("MemoryAllocation", 950, 0, piece(1)),
                ("MemoryDeallocation", 960, 0, piece(4)),  # taken before the log begins
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
        Allocation(200, 2150, 2900, 2500),
        Allocation(200, 2050, None, None),
        Allocation(200, 2300, None, None),
        Allocation(200, 2950, None, None),
    ]


def allocation(size, began, ended, operation_ended=None):
    return Allocation(size, began, ended, operation_ended)


@pytest.mark.parametrize(
    ("ended", "operation_ended", "is_workspace"),
    [(5, 6, True), (6, 6, True), (7, 6, False), (None, 6, False), (5, None, False)],
)
def test_workspace_is_given_back_before_the_end_of_its_operation(ended, operation_ended, is_workspace):
    assert allocation(8, 1, ended, operation_ended).is_workspace is is_workspace


def test_the_peak_is_what_is_held_at_once():
    kept, first, second = allocation(4, 0, None), allocation(8, 1, 3), allocation(16, 3, 5)
    assert peak_bytes([kept, first, second]) == 4 + 16, "what is given back at a moment makes room for what is taken"
    assert peak_bytes([]) == 0
