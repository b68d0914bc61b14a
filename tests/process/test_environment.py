"""What importing TensorFlow through us brings along."""

import subprocess
import sys

import pytest

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


GARBAGE = """
import gc
from accumtrain.process import environment
from accumtrain.kinds.devices import CpuConfig

{before}
environment.prepare(CpuConfig())
assert gc.isenabled() is {enabled}
assert (gc.get_freeze_count() > 100_000) is {frozen}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "enabled", "frozen"),
    [
        ("", True, True),
        ("gc.disable()", False, True),
        ("import tensorflow", True, False),  # the program's own import: its objects are not ours to freeze
    ],
    ids=["on", "off", "imported before"],
)
def test_garbage_is_looked_for_as_before_but_not_in_tensorflow(before, enabled, frozen):
    script = GARBAGE.format(before=before, enabled=enabled, frozen=frozen)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
