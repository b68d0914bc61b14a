"""Programs with two mirrored replicas, each for a process of its own: `python -m tests.engine.replicas NAME ...`.

Logical devices have to be set before TensorFlow runs.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.devices.config import CpuConfig, MirroredConfig
from accumtrain.devices.resolve import resolve_devices
from accumtrain.engine.losses import LossScale
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.optim.config import AdamConfig, OptimConfig, SgdConfig
from tests.engine.small import examples, resnet20, window_for

SHAPE = (8, 8, 1)


def step_on(devices: Any, norm: str, optim: OptimConfig, scale: float = 0.0, **options: Any) -> tuple[Window, Step]:
    with devices.strategy.scope():
        window = window_for(resnet20(norm, units=(1, 1)), optim, SHAPE, **options)
        window.loss_scale = LossScale(scale, 1000) if scale else None
        return window, Step(window)


def batches_on(devices: Any, data: dict[str, Any]) -> Any:
    def of_replicas(context: Any) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(data).batch(4, drop_remainder=True).repeat()

    return iter(devices.strategy.distribute_datasets_from_function(of_replicas))


def train_cases(cases: str) -> None:
    """Print the loss and the variables of each case (norm, precision, dtype of sums) by two replicas and by one."""
    # two replicas first: the logical devices that they need stay
    by_replicas = {2: resolve_devices(MirroredConfig(virtual=2)), 1: resolve_devices(CpuConfig())}
    found = [[_train(by_replicas[replicas], replicas, *case) for replicas in (2, 1)] for case in json.loads(cases)]
    print(json.dumps(found))


def _train(devices: Any, replicas: int, norm: str, precision: str, sums: str) -> dict[str, Any]:
    assert devices.replicas == replicas
    sgd = SgdConfig(lr=0.1, weight_decay=1e-4, momentum=0.9)
    dtype = tf.as_dtype(sums)
    window, step = step_on(devices, norm, sgd, precision=precision, clip_norm=1.0, sum_dtype=dtype)
    parts = [examples(16, SHAPE, seed) for seed in range(3)]
    data = {name: tf.concat([part[name] for part in parts], 0) for name in parts[0]}
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(4 * replicas, drop_remainder=True)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    batches = iter(devices.strategy.experimental_distribute_dataset(dataset.with_options(options)))
    for _ in range(3):
        step.accumulate(batches, 4 // replicas)
        update = step.commit(partial=True)
    assert (bool(update["finite"]), int(update["step"]), float(update["examples"])) == (True, 3, 16.0)
    local = devices.strategy.experimental_local_results
    copies = [[copy.numpy() for copy in local(variable)] for variable in window.model.variables]
    assert all(len(copy) == replicas for copy in copies)
    assert all(np.array_equal(copy[0], other) for copy in copies for other in copy), "replicas hold the same bits"
    return {"loss": float(update["loss"]), "values": [copy[0].tolist() for copy in copies]}


def overflow() -> None:
    """Let one replica overflow in float16, then break the optimizer state of one."""
    devices = resolve_devices(MirroredConfig(virtual=2))
    local = devices.strategy.experimental_local_results
    adam = AdamConfig(lr=1e-3, weight_decay=0.0, epsilon=1e-7)
    window, step = step_on(devices, "batch", adam, scale=1024.0, precision="float16")

    def copies() -> list[np.ndarray]:
        kept = [*window.model.variables, *window.optimizer.state, window.step]
        return [copy.numpy() for variable in kept for copy in local(variable)]

    def update(data: dict[str, Any]) -> dict[str, tf.Tensor]:
        step.accumulate(batches_on(devices, data), 2)
        return step.commit(partial=True)

    data = examples(16, SHAPE)
    assert bool(update(data)["finite"])
    before = copies()
    image = data["inputs"].numpy()
    image[13] = 1e6  # second micro-batch of the second replica
    skipped = update({**data, "inputs": image})
    assert (bool(skipped["finite"]), int(skipped["skipped"]), int(skipped["step"])) == (False, 1, 1)
    assert all(np.array_equal(one, other) for one, other in zip(before, copies(), strict=True))
    assert window.loss_scale is not None
    assert [scale.numpy() for scale in local(window.loss_scale.value)] == [512.0, 512.0]
    again = update(data)
    assert (bool(again["finite"]), float(again["loss_scale"]), int(again["step"])) == (True, 512.0, 2)
    assert again["state_finite"].shape == ()
    assert bool(again["state_finite"])
    of_second = local(window.optimizer.state[0])[1]
    of_second.assign(tf.fill(of_second.shape, np.nan))
    broken = update(data)
    assert (bool(broken["finite"]), bool(broken["state_finite"])) == (True, False), "one replica's copy is enough"


def plant_nan(*places: str) -> None:
    """Print for NaN in each place of the second replica: finite, state_finite, and if nothing is changed."""
    devices = resolve_devices(MirroredConfig(virtual=2))
    local = devices.strategy.experimental_local_results
    for place in places:
        window, step = step_on(devices, "batch", AdamConfig(lr=1e-3))
        batches = batches_on(devices, examples(16, SHAPE))
        step.accumulate(batches, 2)
        assert bool(step.commit(partial=True)["state_finite"])
        step.accumulate(batches, 2)
        second = local(
            {
                "loss": window.loss,
                "gradient": window.gradients[3],
                "statistics sum": window.statistics.buffers[1],
                "weight": window.variables_[3],
                "optimizer state": window.optimizer.state[-1],
                "statistics": window.statistics.variables_[1],
            }[place]
        )[1]
        second.assign(tf.fill(second.shape, tf.cast(float("nan"), second.dtype)))
        before = [copy.numpy() for variable in window.updated_variables for copy in local(variable)]
        update = step.commit(partial=True)
        after = [copy.numpy() for variable in window.updated_variables for copy in local(variable)]
        same = all(np.array_equal(one, other, equal_nan=True) for one, other in zip(before, after, strict=True))
        print(place, bool(update["finite"]), bool(update["state_finite"]), same, sep=",")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
