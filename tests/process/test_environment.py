"""What importing TensorFlow through us brings along."""

import subprocess
import sys

SCRIPT = """
import sys
from accumtrain.process import environment
from accumtrain.kinds.devices import CpuConfig

environment.prepare(CpuConfig())
assert "tensorflow" in sys.modules
assert not {"keras", "matplotlib", "PIL"} & sys.modules.keys()

import accumtrain.jobs.train

assert not {"keras", "matplotlib"} & sys.modules.keys()

import keras
import tensorflow as tf

assert tf.keras.optimizers.Lion is keras.optimizers.Lion
assert keras.backend.backend() == "tensorflow"
"""


def test_keras_is_imported_only_when_asked_for():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
