"""How much of a checkpoint is in memory when it is read back."""

from __future__ import annotations

import subprocess
import sys

import pytest
import tensorflow as tf

from accumtrain.train.checkpoint import TensorReader

MB = 2**20


def test_a_check_reads_a_megabyte_at_a_time(tmp_path, monkeypatch):
    """It runs beside an update, at whose peak even 20 MB are 8 % of a RevNet-56's."""
    written = [tf.Variable(tf.zeros([100_000])) for _ in range(10)] + [tf.Variable(tf.zeros([1_000_000]))]
    prefix = tf.train.Checkpoint(written=written).write(str(tmp_path / "state"))
    restore, together = tf.raw_ops.RestoreV2, []

    def noted(**arguments):
        tensors = restore(**arguments)
        together.append([tensor.shape.num_elements() * tensor.dtype.size for tensor in tensors])
        return tensors

    monkeypatch.setattr(tf.raw_ops, "RestoreV2", noted)
    TensorReader()(prefix)
    assert all(len(sizes) == 1 or sum(sizes) <= MB for sizes in together)
    assert sorted(size for sizes in together for size in sizes if size > 1000) == [400_000] * 10 + [4_000_000]


RESTORE = """
import sys
from pathlib import Path

from accumtrain.devices.config import CpuConfig
from accumtrain.process import environment

environment.prepare(CpuConfig())
import keras
import numpy as np
import tensorflow as tf

from accumtrain.train.checkpoint import load_into
from accumtrain.runs.checkpoint_store import Saved

make = {"tensorflow": tf.Variable, "keras": keras.Variable}[sys.argv[1]]
values = [np.arange(number, number + 2**20, dtype=np.float32) for number in range(20)]  # 4 MB each
variables = [make(tf.zeros([2**20])) for _ in values]
for variable, value in zip(variables, values):
    variable.assign(tf.zeros([2**20]) + value)
checkpoint = tf.train.Checkpoint(variables=variables)
saved = Saved(3, Path(sys.argv[2]))
saved.path.mkdir()
checkpoint.write(saved.prefix)
for variable in variables:
    variable.assign(tf.zeros([2**20]))

before = tf.config.experimental.get_memory_info("CPU:0")["current"]
tf.config.experimental.reset_memory_stats("CPU:0")
load_into(checkpoint, saved)
print(tf.config.experimental.get_memory_info("CPU:0")["peak"] - before)
for variable, value in zip(variables, values):
    np.testing.assert_array_equal(variable.numpy(), value)
"""


@pytest.mark.parametrize("kind", ["tensorflow", "keras"])
def test_a_restore_takes_no_more_than_the_variables(tmp_path, kind):
    """A run that fills its memory must fit when it is continued, too, and TensorFlow reads all values at once."""
    folder = tmp_path / "step-3"
    printed = subprocess.check_output([sys.executable, "-c", RESTORE, kind, str(folder)], text=True)
    assert int(printed) < 8 * MB, "two of twenty variables"
