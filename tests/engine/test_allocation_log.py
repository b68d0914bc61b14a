"""The log of what is allocated, by TensorFlow's own profiler: who has taken a piece."""

from __future__ import annotations

import json
import subprocess
import sys

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
