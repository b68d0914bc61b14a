"""One of several workers, by TF_CONFIG, that prints what `fit` does beside the updates that matrix.py compares."""

from __future__ import annotations

import json
import warnings
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import cross_device_ops

from accumtrain.keras import Accumulate, MultiWorkerMirroredStrategy, accumulate
from tests.keras.matrix import Weights, difference

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(48, 6))
Y = DRAW.normal(size=(48, 3))


def model_with(optimizer: keras.optimizers.Optimizer) -> keras.Model:
    """A model of 83 parameters."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)])
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def fit(model: keras.Model, batch: int, first: int = 0, end: int = 48) -> dict[str, Any]:
    """Train on examples `first` to `end`. Return the metrics of the epoch."""
    history = model.fit(X[first:end], Y[first:end], batch_size=batch, shuffle=False, verbose=0).history
    return {name: values[0] for name, values in history.items()}


def collectives(strategy: tf.distribute.Strategy, door: str) -> list[int]:
    """Sizes of the vectors that a graph of `fit` reduces over the workers, without scalars."""
    with strategy.scope():
        optimizer = keras.optimizers.Adam(1e-2, global_clipnorm=0.1)
        model = model_with(Accumulate(optimizer, 4) if door == "Accumulate" else optimizer)
        if door == "accumulate":
            accumulate(model, 4)
    reduced: list[int] = []
    plain = cross_device_ops.CollectiveAllReduce._all_reduce

    def counted(self: Any, reduce_op: Any, value: Any, *arguments: Any) -> Any:
        reduced.extend(each.shape.num_elements() for each in tf.nest.flatten(value))
        return plain(self, reduce_op, value, *arguments)

    with mock.patch.object(cross_device_ops.CollectiveAllReduce, "_all_reduce", counted):
        fit(model, 16 if door == "Accumulate" else 48)
    return [size for size in reduced if size > 1]


def keep(strategy: tf.distribute.Strategy) -> Weights:
    """Windows of 16 examples, the second of which begins in one `fit` and ends in the next."""
    with strategy.scope():
        model = model_with(Accumulate(keras.optimizers.Adam(1e-2), 4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        fit(model, 4, end=24)
    fit(model, 4, first=24)
    return model.get_weights()


def flush(strategy: tf.distribute.Strategy) -> Weights:
    """Windows of 16, 16 and 8 examples."""
    with strategy.scope():
        model = model_with(Accumulate(keras.optimizers.Adam(1e-2), 4, at_end="flush"))
    fit(model, 4, end=40)
    return model.get_weights()


def from_big_batches(weights: Weights, end: int) -> float:
    """Distance of weights from those of updates of 16 examples, by plain Keras in this process alone."""
    model = model_with(keras.optimizers.Adam(1e-2))
    start = model.get_weights()
    fit(model, 16, end=end)
    return difference(model.get_weights(), weights, start)


def without_an_example(strategy: tf.distribute.Strategy) -> tuple[float, float]:
    """Batches of 16 and 1: distance of `accumulate` from plain Keras on the same workers, in weights and metrics."""
    with strategy.scope():
        plain, split = model_with(keras.optimizers.Adam(1e-2)), model_with(keras.optimizers.Adam(1e-2))
    start = plain.get_weights()
    expected, found = (fit(model, 16, end=17) for model in (plain, accumulate(split, 4)))
    metrics = max(abs(found[name] - value) for name, value in expected.items())
    return difference(plain.get_weights(), split.get_weights(), start), metrics


def overflow(strategy: tf.distribute.Strategy) -> dict[str, Any]:
    """A window in which one example of the last worker is infinite, and the window after it."""
    keras.config.set_dtype_policy("mixed_float16")
    with strategy.scope():
        model = model_with(Accumulate(keras.optimizers.SGD(0.1), 2))
    start, scale = model.get_weights(), model.optimizer.initial_scale
    X[7] = np.inf
    fit(model, 4, end=8)
    optimizer = model.optimizer
    moved = [not np.array_equal(*pair) for pair in zip(start, model.get_weights(), strict=True)]
    after = {"moved": any(moved), "scale": float(optimizer.dynamic_scale.numpy()) / scale}
    fit(model, 4, first=8, end=16)
    moved = [not np.array_equal(*pair) for pair in zip(start, model.get_weights(), strict=True)]
    return {**after, "moved by the next": all(moved), "updates": int(optimizer.iterations.numpy())}


def main() -> None:
    strategy = MultiWorkerMirroredStrategy()
    keras.config.set_floatx("float64")
    found = {
        "collectives": {door: collectives(strategy, door) for door in ("Accumulate", "accumulate")},
        "keep": from_big_batches(keep(strategy), end=48),
        "flush": from_big_batches(flush(strategy), end=40),
        "without an example": without_an_example(strategy),
        "overflow": overflow(strategy),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
