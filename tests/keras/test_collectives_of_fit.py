"""One collective operation per update under a strategy, with either door. In a process of its own."""

from __future__ import annotations

import pytest

from tests.keras.programs import run_python

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


@pytest.mark.parametrize("door", [pytest.param("Accumulate", marks=pytest.mark.slow), "accumulate"])
def test_one_reduce_per_update(door):
    # Keras reduces 8 x 6 inputs and 8 x 3 targets when it builds the model; the update reduces all weights at once
    assert run_python("-c", SCRIPT, door).splitlines()[-1] == "[48, 24, 83] 83"
