"""An iterator may be dropped at any time: while TensorFlow reads ahead, and by the end of the process."""

import os
import subprocess
import sys

PERTURB = "MALLOC_PERTURB_"  # the C library overwrites what is freed, so that to read it is a crash
SLOW = """
import sys, time, tensorflow as tf
from accumtrain.data.pipeline import DistributedBatches

def wait(number):
    time.sleep(0.02)
    return number

def batches(shard):
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False  # as for arrays
    rows = tf.data.Dataset.range(2**40).map(lambda number: tf.numpy_function(wait, [number], tf.int64))
    return rows.prefetch(1).with_options(options)
"""
DROP = """
distributed = DistributedBatches(tf.distribute.OneDeviceStrategy("/cpu:0"), batches)
for _ in range(4):
    iterator = iter(distributed)
    next(iterator)
    del iterator
"""
KEEP = """
def read():
    iterator = iter(DistributedBatches(tf.distribute.get_strategy(), batches))
    next(iterator)
    raise ValueError("of the user")  # Python keeps the frame of it, to its end
read()
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "faulthandler", "-c", SLOW + program]
    environment = {**os.environ, PERTURB: "165"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)


def test_while_it_is_read_ahead_for_a_device():
    done = run(DROP)
    assert done.returncode == 0, done.stderr


def test_by_an_error_that_ends_the_process():
    done = run(KEEP)
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: of the user\n")
