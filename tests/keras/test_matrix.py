"""Both doors of accumulation against one big batch in many combinations, and the collectives of an update."""

import json

import pytest

from tests.keras.matrix import beyond
from tests.keras.programs import run_python

HALF = 1e-2  # in half precision sums over a micro-batch are rounded where those over the batch were


def differences(*arguments: str) -> dict[str, float]:
    """Return what `tests/keras/matrix.py` prints."""
    found: dict[str, float] = json.loads(run_python("-m", "tests.keras.matrix", *arguments).splitlines()[-1])
    return found


FOUR = "--models mlp cnn lstm two_outputs"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ("--models mlp", 2 * 8 * 3),
        ("--models cnn", 2 * 8 * 3),
        ("--models mobilenet", 2 * 8 * 3),
        ("--models lstm", 2 * 8 * 3),
        ("--models two_outputs", 2 * 8 * 3),
        (f"{FOUR} --steps 2 4 --replicas 2", 4 * 8 * 4),
        (f"{FOUR} --steps 2 4 --replicas 4", 4 * 8 * 4),
        pytest.param(f"{FOUR} --steps 4 --jit", 4 * 8 * 2, marks=pytest.mark.xla),
        # a sum of losses beside penalties
        ("--models summed --optimizers sgd --steps 2 4 --replicas 2 --doors accumulate --updates 2", 2),
    ],
)
def test_updates_are_those_of_the_big_batch(arguments, count):
    found = differences(*arguments.split())
    assert len(found) == count
    assert not beyond(found)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_the_first_update_in_half_precision(policy):
    """Two updates, each as far from float32's as this processor rounds, are at most twice as far apart."""
    arguments = f"{FOUR} --optimizers sgd adam lion own --steps 2 4 8 --updates 1 --policy {policy}"
    found = differences(*arguments.split())
    assert len(found) == 4 * 4 * (3 * 2 + 1)
    errors = {case.partition(" ")[2]: apart for case, apart in found.items() if case.startswith("error")}
    for case, apart in found.items():
        door, model, optimizer, *_ = case.split()
        assert door == "error" or apart <= max(2 * errors[f"{model} {optimizer}"], HALF), (case, apart)


SCRIPT = """
import sys

import keras
import numpy as np
from tensorflow.python.distribute import cross_device_ops

from accumtrain.keras import Accumulate, accumulate
from tests.keras.programs import mirrored

strategy = mirrored()
reduced = []
for name in ("reduce", "batch_reduce"):
    plain = getattr(cross_device_ops.CrossDeviceOps, name)

    def counted(self, reduce_op, values, *arguments, _plain=plain, _name=name, **others):
        reduced.append(sum(each.values[0].shape.num_elements() for each, _ in values)
                       if _name == "batch_reduce" else values.values[0].shape.num_elements())
        return _plain(self, reduce_op, values, *arguments, **others)

    setattr(cross_device_ops.CrossDeviceOps, name, counted)
with strategy.scope():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8), keras.layers.Dense(3)])
    optimizer = keras.optimizers.Adam(1e-2, global_clipnorm=0.1)
    model.compile(Accumulate(optimizer, 4) if sys.argv[1] == "Accumulate" else optimizer, "mse", steps_per_execution=1)
    if sys.argv[1] == "accumulate":
        accumulate(model, 4)
reduced.clear()
model.fit(np.ones((16, 6)), np.ones((16, 3)), batch_size=16, verbose=0)
print([size for size in reduced if size > 1], model.count_params())
"""


@pytest.mark.slow
@pytest.mark.parametrize("door", [pytest.param("Accumulate", marks=pytest.mark.slow), "accumulate"])
def test_one_reduce_per_update(door):
    # Keras reduces 8 x 6 inputs and 8 x 3 targets when it builds the model; the update reduces all weights at once
    assert run_python("-c", SCRIPT, door).splitlines()[-1] == "[48, 24, 83] 83"
