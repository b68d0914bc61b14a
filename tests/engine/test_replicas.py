"""Two mirrored replicas with two micro-steps each make the update of one device with four.

In a process of its own: logical devices have to be set before TensorFlow runs.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json
import sys

import numpy as np
import tensorflow as tf

from accumtrain.config import DeviceConfig, SgdConfig
from accumtrain.devices import resolve
from accumtrain.engine.step import Step
from tests.engine.small import examples, resnet20, window_for

norm, precision, sums, replicas = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
devices = resolve(DeviceConfig("mirrored" if replicas > 1 else "cpu", replicas, None, None, "auto", [], None, 300))
assert devices.replicas == replicas
with devices.strategy.scope():
    window = window_for(resnet20(norm, units=(1, 1)), SgdConfig("sgd", 0.1, 1e-4, 0.0, 0.9, False), (8, 8, 1),
                        precision=precision, clip_norm=1.0, sum_dtype=tf.as_dtype(sums))
    step = Step(window, devices.strategy)
parts = [examples(16, (8, 8, 1), seed) for seed in range(3)]
data = {name: tf.concat([part[name] for part in parts], 0) for name in parts[0]}
dataset = tf.data.Dataset.from_tensor_slices(data).batch(4 * replicas, drop_remainder=True)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
batches = iter(devices.strategy.experimental_distribute_dataset(dataset.with_options(options)))
for _ in range(3):
    step.accumulate(batches, tf.constant(4 // replicas))
    update = step.commit()
assert bool(update["finite"]) and int(update["step"]) == 3 and float(update["examples"]) == 16.0
copies = [[copy.numpy() for copy in devices.strategy.experimental_local_results(v)] for v in window.model.variables]
assert all(len(copy) == replicas for copy in copies)
assert all(np.array_equal(copy[0], other) for copy in copies for other in copy), "replicas hold the same bits"
print(json.dumps({"loss": float(update["loss"]), "values": [copy[0].tolist() for copy in copies]}))
"""


def trained(norm, precision, sums, replicas):
    command = [sys.executable, "-c", SCRIPT, norm, precision, sums, str(replicas)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("norm", "precision", "sums", "bound"),
    [("group", "float64", "float64", 1e-12), ("batch", "float32", "float32", 1e-4), ("batch", "float32", "float64", 0)],
)
def test_two_replicas_train_as_one_device(norm, precision, sums, bound):
    """With sums in float64 of numbers in float32 no order of adding them changes a bit."""
    one, two = (trained(norm, precision, sums, replicas) for replicas in (1, 2))
    assert two["loss"] == pytest.approx(one["loss"], rel=bound)

    def flat(values):
        return [number for value in values for number in (flat(value) if isinstance(value, list) else [value])]

    assert flat(two["values"]) == pytest.approx(flat(one["values"]), rel=bound, abs=bound)
