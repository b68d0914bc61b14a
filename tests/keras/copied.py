"""A user's program: `python copied.py FOLDER` writes models of its own classes, each with its next update."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from accumtrain.keras import Accumulate
from accumtrain.keras.run.model_copy import write_model

DRAW = np.random.default_rng(0)
X, Y = DRAW.normal(size=(8, 3)).astype(np.float32), DRAW.normal(size=(8, 2)).astype(np.float32)
SCALE = 3.0


def scaled_tanh(x: Any) -> Any:
    return SCALE * keras.ops.tanh(x)


def power_loss(power: float) -> Callable[[Any, Any], Any]:
    def loss(y: Any, y_pred: Any) -> Any:
        return keras.ops.mean(keras.ops.abs(y - y_pred) ** power, axis=-1)

    return loss


class OwnLoss(keras.losses.Loss):
    def call(self, y: Any, y_pred: Any) -> Any:
        return SCALE * keras.ops.mean(keras.ops.square(y - y_pred), axis=-1)


class OwnMetric(keras.metrics.Mean):
    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        super().update_state(keras.ops.abs(y - y_pred), sample_weight)


class HalfSpeed(keras.optimizers.SGD):
    def update_step(self, gradient: Any, variable: keras.Variable, learning_rate: Any) -> None:
        super().update_step(gradient * 0.5, variable, learning_rate)


class OwnDense(keras.layers.Layer):
    """Its constructor takes none of Keras's arguments, as in many tutorials."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.units = units

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], self.units))

    def call(self, x: Any) -> Any:
        return scaled_tanh(x @ self.kernel)


@keras.saving.register_keras_serializable("copied")
class Registered(keras.layers.Dense):
    pass


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = [OwnDense(4), OwnDense(3)]
        self.norm, self.head = keras.layers.BatchNormalization(), keras.layers.Dense(2)

    def call(self, x: Any, training: bool = False) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x, training=training))


class OwnRow(keras.Sequential):
    def __init__(self) -> None:
        super().__init__([keras.Input((3,)), OwnDense(4), keras.layers.Dense(2)])


def row(*layers: keras.layers.Layer, policy: str = "float32") -> keras.Model:
    return keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(2, dtype=policy)])


def compiled(model: keras.Model, *arguments: Any, **named: Any) -> keras.Model:
    model.compile(*arguments, **named)
    return model


def own_classes() -> keras.Model:
    metrics = [OwnMetric(), power_loss(1.0)]
    return compiled(row(OwnDense(4), Registered(3)), HalfSpeed(0.1, momentum=0.9), OwnLoss(), metrics=metrics)


def own_functions() -> keras.Model:
    lambdas = [keras.layers.Lambda(lambda x: tf.nn.relu(x) * SCALE), keras.layers.Lambda(lambda x: x + 1.0)]
    model = row(*lambdas, keras.layers.Dense(4, activation=scaled_tanh), keras.layers.Dense(3, activation=tf.nn.silu))
    return compiled(model, "sgd", lambda y, y_pred: keras.ops.mean(y - y_pred))


def functions_of_one_name() -> keras.Model:
    x = keras.Input((3,))
    model = keras.Model(x, [keras.layers.Dense(2)(x), keras.layers.Dense(2)(x)])
    return compiled(model, "sgd", [power_loss(1.0), power_loss(2.0)])


def subclassed() -> keras.Model:
    return compiled(Subclassed(), "adam", "mse")


def nested() -> keras.Model:
    return compiled(keras.Sequential([keras.Input((3,)), OwnRow(), keras.layers.Dropout(0.0)]), "adam", "mse")


def not_built() -> keras.Model:
    return compiled(keras.Sequential([keras.layers.Dense(2)]), "adam", "mse")


def half_precision() -> keras.Model:
    model = row(keras.layers.Dense(4, dtype="mixed_float16"), policy="mixed_float16")
    return compiled(model, keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(0.1, 10)), "mse")


def accumulated() -> keras.Model:
    return compiled(row(), Accumulate("adam", 2), "mse")


MODELS = [own_classes, own_functions, functions_of_one_name, subclassed, nested, not_built, half_precision, accumulated]


def updated(model: keras.Model) -> dict[str, Any]:
    """Predictions, and the loss and the weights of a further update."""
    outputs = len(getattr(model, "outputs", [None]))
    predictions = keras.tree.flatten(model.predict(X, verbose=0))
    loss = model.train_on_batch(X, [Y] * outputs if outputs > 1 else Y)
    values = [*predictions, *keras.tree.flatten(loss), *model.get_weights()]
    return {f"{place:02}": np.asarray(value) for place, value in enumerate(values)}


def write(folder: Path) -> None:
    """Write each model as it is compiled and, but for that which is not built, after an update, and its next one."""
    for build in MODELS:
        keras.utils.set_random_seed(0)
        model = build()
        for trained in (False, True):
            place = folder / f"{build.__name__}-{trained}"
            place.mkdir()
            write_model(model, place)
            built = model.built
            after = updated(model)
            np.savez(place / "next.npz", **after if built else {})


if __name__ == "__main__":
    write(Path(sys.argv[1]))
