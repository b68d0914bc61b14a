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

from accumtrain.devices.config import CpuConfig, MirroredConfig
from accumtrain.optim.config import SgdConfig
from accumtrain.devices.resolve import resolve_devices
from accumtrain.engine.step import Step
from tests.engine.small import examples, resnet20, window_for

# two replicas first: the logical devices that they need stay
by_replicas = {
    2: resolve_devices(MirroredConfig(virtual=2)),
    1: resolve_devices(CpuConfig()),
}


def trained(norm, precision, sums, replicas):
    devices = by_replicas[replicas]
    assert devices.replicas == replicas
    with devices.strategy.scope():
        window = window_for(resnet20(norm, units=(1, 1)), SgdConfig(lr=0.1, weight_decay=1e-4, momentum=0.9), (8, 8, 1),
                            precision=precision, clip_norm=1.0, sum_dtype=tf.as_dtype(sums))
        step = Step(window, devices.strategy)
    parts = [examples(16, (8, 8, 1), seed) for seed in range(3)]
    data = {name: tf.concat([part[name] for part in parts], 0) for name in parts[0]}
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(4 * replicas, drop_remainder=True)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    batches = iter(devices.strategy.experimental_distribute_dataset(dataset.with_options(options)))
    for _ in range(3):
        step.accumulate(batches, 4 // replicas)
        update = step.commit(partial=True)
    assert bool(update["finite"]) and int(update["step"]) == 3 and float(update["examples"]) == 16.0
    local = devices.strategy.experimental_local_results
    copies = [[copy.numpy() for copy in local(v)] for v in window.model.variables]
    assert all(len(copy) == replicas for copy in copies)
    assert all(np.array_equal(copy[0], other) for copy in copies for other in copy), "replicas hold the same bits"
    return {"loss": float(update["loss"]), "values": [copy[0].tolist() for copy in copies]}


print(json.dumps([[trained(*case, replicas) for replicas in (2, 1)] for case in json.loads(sys.argv[1])]))
"""


OVERFLOW = """
import numpy as np
import tensorflow as tf

from accumtrain.devices.config import CpuConfig, MirroredConfig
from accumtrain.optim.config import AdamConfig
from accumtrain.devices.resolve import resolve_devices
from accumtrain.engine.losses import LossScale
from accumtrain.engine.step import Step
from tests.engine.small import examples, resnet20, window_for

devices = resolve_devices(MirroredConfig(virtual=2))
with devices.strategy.scope():
    adam = AdamConfig(lr=1e-3, weight_decay=0.0, epsilon=1e-7)
    window = window_for(resnet20("batch", units=(1, 1)), adam, (8, 8, 1), precision="float16")
    window.loss_scale = LossScale(1024.0, 1000)
    step = Step(window, devices.strategy)


def copies():
    kept = [*window.model.variables, *window.optimizer.state, window.step]
    return [copy.numpy() for variable in kept for copy in devices.strategy.experimental_local_results(variable)]


def update(data):
    def of_replicas(context):
        return tf.data.Dataset.from_tensor_slices(data).batch(4, drop_remainder=True)

    step.accumulate(iter(devices.strategy.distribute_datasets_from_function(of_replicas)), 2)
    return step.commit(partial=True)


data = examples(16, (8, 8, 1))
assert bool(update(data)["finite"])
before = copies()
image = data["image"].numpy()
image[13] = 1e6  # second micro-batch of the second replica
skipped = update({**data, "image": image})
assert not bool(skipped["finite"]) and int(skipped["skipped"]) == 1 and int(skipped["step"]) == 1
assert all(np.array_equal(one, other) for one, other in zip(before, copies(), strict=True))
scales = [scale.numpy() for scale in devices.strategy.experimental_local_results(window.loss_scale.value)]
assert scales == [512.0, 512.0], scales
again = update(data)
assert bool(again["finite"]) and float(again["loss_scale"]) == 512.0 and int(again["step"]) == 2
assert again["state_finite"].shape == () and bool(again["state_finite"])
of_second = devices.strategy.experimental_local_results(window.optimizer.state[0])[1]
of_second.assign(tf.fill(of_second.shape, np.nan))
broken = update(data)
assert bool(broken["finite"]) and not bool(broken["state_finite"]), "the copy of one replica is enough"
"""


PLANTED = """
import sys
import numpy as np
import tensorflow as tf

from accumtrain.devices.config import MirroredConfig
from accumtrain.optim.config import AdamConfig
from accumtrain.devices.resolve import resolve_devices
from accumtrain.engine.step import Step
from tests.engine.small import examples, resnet20, window_for

devices = resolve_devices(MirroredConfig(virtual=2))
local = devices.strategy.experimental_local_results


def trained(plant):
    with devices.strategy.scope():
        window = window_for(resnet20("batch", units=(1, 1)), AdamConfig(lr=1e-3), (8, 8, 1))
        step = Step(window, devices.strategy)
    data = examples(16, (8, 8, 1))
    dataset = lambda context: tf.data.Dataset.from_tensor_slices(data).batch(4).repeat()
    batches = iter(devices.strategy.distribute_datasets_from_function(dataset))
    step.accumulate(batches, 2)
    assert bool(step.commit(partial=True)["state_finite"])
    step.accumulate(batches, 2)
    place = {
        "loss": window.loss, "gradient": window.gradients[3], "statistics sum": window.statistics.buffers[1],
        "weight": window.variables_[3], "optimizer state": window.optimizer.state[-1],
        "statistics": window.statistics.variables_[1],
    }[plant]
    second = local(place)[1]  # of the second replica
    second.assign(tf.fill(second.shape, tf.cast(float("nan"), second.dtype)))
    before = [copy.numpy() for variable in window.written for copy in local(variable)]
    update = step.commit(partial=True)
    after = [copy.numpy() for variable in window.written for copy in local(variable)]
    same = all(np.array_equal(one, other, equal_nan=True) for one, other in zip(before, after, strict=True))
    return [bool(update["finite"]), bool(update["state_finite"]), same]


for plant in sys.argv[1:]:
    print(plant, *trained(plant), sep=",")
"""
SUMS, STATE = ("loss", "gradient", "statistics sum"), ("weight", "optimizer state", "statistics")


@pytest.mark.slow
def test_what_is_not_finite_on_one_replica_is_found():
    lines = output_of(PLANTED, *SUMS, *STATE).splitlines()
    found = dict(line.split(",", 1) for line in lines)
    assert {place: found[place] for place in SUMS} == dict.fromkeys(SUMS, "False,True,True"), "nothing is changed"
    assert {place: found[place] for place in STATE} == dict.fromkeys(STATE, "True,False,False")


def output_of(program, *arguments):
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_an_overflow_of_one_replica_skips_the_window_on_all():
    output_of(OVERFLOW)


CASES = {
    ("group", "float64", "float64"): 1e-12,
    ("batch", "float32", "float32"): 1e-4,
    ("batch", "float32", "float64"): 0,  # sums in float64 of numbers in float32: no order of adding them changes a bit
}


@pytest.fixture(scope="module")
def trained():
    """Of each case what two replicas and what one device have trained, all in one process."""
    pairs = json.loads(output_of(SCRIPT, json.dumps(list(CASES))).splitlines()[-1])
    return dict(zip(CASES, pairs, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_two_replicas_train_as_one_device(trained, case):
    two, one = trained[case]
    assert two["loss"] == pytest.approx(one["loss"], rel=CASES[case])

    def flat(values):
        return [number for value in values for number in (flat(value) if isinstance(value, list) else [value])]

    assert flat(two["values"]) == pytest.approx(flat(one["values"]), rel=CASES[case], abs=CASES[case])
