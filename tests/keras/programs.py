"""Programs of the tests in processes of their own, since logical devices must exist before TensorFlow begins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import accumtrain

ROOT = Path(accumtrain.__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}

CONTINUE = """
import sys
import accumtrain.keras
import keras, numpy as np, tensorflow as tf
if sys.argv[1] == "as written":
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False, "constant_folding": False})
model = keras.saving.load_model("model.keras")
with np.load("data.npz") as data:
    model.fit(data["x"], data["y"], batch_size=int(sys.argv[2]), epochs=2, shuffle=False, verbose=0)
np.savez("weights.npz", *model.get_weights())
"""


def run_python(*arguments: str, folder: Path = ROOT) -> str:
    """Return what `python arguments` prints."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def assert_a_fresh_process_continues(
    model: keras.Model, x: Any, y: Any, folder: Path, batch: int = 4, *, as_written: bool = False
) -> None:
    """Two epochs of a saved model in another process make the weights that they make here."""
    model.save(folder / "model.keras")
    np.savez(folder / "data.npz", x=x, y=y)
    run_python("-c", CONTINUE, "as written" if as_written else "", str(batch), folder=folder)
    model.fit(x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0)
    with np.load(folder / "weights.npz") as found:
        for expected, weight in zip(model.get_weights(), found.values(), strict=True):
            np.testing.assert_array_equal(weight, expected)


def mirrored(replicas: int = 2) -> tf.distribute.MirroredStrategy:
    """Return a strategy of replicas on this CPU."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    return tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])
