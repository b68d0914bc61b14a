"""The log of what is allocated, by TensorFlow's own profiler: who has taken a piece."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

from accumtrain.engine.allocation_log import Change, log_allocations

REAL = """
import json
from accumtrain.kinds.devices import CpuConfig
from accumtrain.process import environment
environment.prepare(CpuConfig())
import tensorflow as tf
from accumtrain.engine.allocation_log import log_allocations, mark

@tf.function
def larger(x):
    return tf.concat([x, x], axis=0)

@tf.function
def step(batches):
    return larger(next(batches))

def work():
    options = tf.data.Options()
    options.threading.private_threadpool_size = 0
    of_4_kb = tf.data.Dataset.range(4).map(lambda i: tf.fill([1000], tf.cast(i, tf.float32)))
    data = of_4_kb.map(larger, tf.data.AUTOTUNE).prefetch(2)
    batches = iter(data.with_options(options))
    mark("begun")
    step(batches).numpy()
    mark("ended")

log = log_allocations(work)
print(json.dumps([[each.asked, each.thread] for each in log.changes if each.taken]))
print(json.dumps([log.marked_by, [name for _, name in sorted(log.marks)]]))
"""


def test_threads_of_the_data_pipeline_are_told_from_those_of_the_step():
    """Both run the same function: only the thread tells that 8000 bytes are the pipeline's and 16000 the step's."""
    done = subprocess.run(
        [sys.executable, "-c", REAL],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    *_, changes, (marked_by, marks) = map(json.loads, done.stdout.splitlines())
    of_pipeline = {thread for asked, thread in changes if asked == 8000}
    of_step = {thread for asked, thread in changes if asked == 16000}
    assert of_pipeline
    assert of_step
    assert not of_pipeline & (of_step | {marked_by})
    assert marks == ["begun", "ended"]


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
                ("accumtrain:ended#id=4#", 1950, 0, {}),
                ("accumtrain:begun", 0, 0, {}),
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
    log = log_allocations(lambda: None)
    assert log.changes == [
        Change(2050, True, 3, 256, 200, "Relu", None, "worker/8"),
        Change(2150, True, 1, 256, 200, "Conv", 2500, "worker/7"),
        Change(2300, True, 2, 256, 200, None, None, "worker/8"),
        Change(2900, False, 1, 256, 200, "Conv", 2500, "worker/7"),
    ]
    assert log.marks == [(1000, "begun"), (2950, "ended")]
    assert log.marked_by == "worker/8"
