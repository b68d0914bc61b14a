"""Models without batch statistics, optimizers and data, on which updates are compared, and a short call of fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

import accumtrain
from accumtrain.keras import Adafactor

EXAMPLES = 32  # of one update. With one example for a replica plain Keras differs by 1e-8, too
UPDATES = 5
CLASSES = 4
SIZE = 96  # examples of the data of `fit`
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Case(NamedTuple):
    """A model, and the shapes and values of what it is trained on."""

    build: Callable[[], keras.Model]
    inputs: Callable[[np.random.Generator, int], np.ndarray]
    losses: Any = CROSS_ENTROPY
    targets: Callable[[np.random.Generator, int], Any] = lambda draw, count: draw.integers(0, CLASSES, count)
    loss_weights: Any = None


def mlp() -> keras.Model:
    layers = [keras.layers.Dense(16, activation="tanh"), keras.layers.Dropout(0.0), keras.layers.Dense(CLASSES)]
    return keras.Sequential([keras.Input((6,)), *layers])


def cnn() -> keras.Model:
    first = [keras.layers.Conv2D(8, 3, padding="same"), keras.layers.GroupNormalization(4), keras.layers.ReLU()]
    rest = [keras.layers.Conv2D(8, 3, strides=2), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(CLASSES)]
    return keras.Sequential([keras.Input((8, 8, 3)), *first, *rest])


def mobilenet() -> keras.Model:
    """MobileNetV3Small whose batch normalisation stays as it is, so that no example depends on another."""
    model = keras.applications.MobileNetV3Small(
        (32, 32, 3), alpha=0.5, minimalistic=True, weights=None, classes=CLASSES, dropout_rate=0.0,
        classifier_activation=None, include_preprocessing=False,
    )  # fmt: skip
    for layer in model.layers:
        layer.trainable = not isinstance(layer, keras.layers.BatchNormalization)
    return model


def lstm() -> keras.Model:
    layers = [keras.layers.Embedding(20, 8), keras.layers.LSTM(8), keras.layers.Dense(CLASSES)]
    return keras.Sequential([keras.Input((7,), dtype="int32"), *layers])


def two_outputs() -> keras.Model:
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(16, activation="tanh")(inputs)
    outputs = {"kind": CLASSES, "size": 1}
    return keras.Model(inputs, {name: keras.layers.Dense(size, name=name)(hidden) for name, size in outputs.items()})


def penalised() -> keras.Model:
    regular = keras.layers.Dense(16, activation="tanh", kernel_regularizer="l2", activity_regularizer="l1")
    return keras.Sequential([keras.Input((6,)), regular, keras.layers.Dense(CLASSES)])


def vectors(draw: np.random.Generator, count: int) -> np.ndarray:
    return draw.normal(size=(count, 6))


CASES = {
    "mlp": Case(mlp, vectors),
    "cnn": Case(cnn, lambda draw, count: draw.normal(size=(count, 8, 8, 3))),
    "mobilenet": Case(mobilenet, lambda draw, count: draw.normal(size=(count, 32, 32, 3))),
    "lstm": Case(lstm, lambda draw, count: draw.integers(0, 20, (count, 7))),
    "two_outputs": Case(
        two_outputs,
        vectors,
        losses={"kind": CROSS_ENTROPY, "size": "mse"},
        targets=lambda draw, count: {"kind": draw.integers(0, CLASSES, count), "size": draw.normal(size=(count, 1))},
        loss_weights={"kind": 1.0, "size": 0.5},
    ),
    "summed": Case(penalised, vectors, keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")),
}


@keras.saving.register_keras_serializable(package="tests")
class SignedRoot(keras.optimizers.Optimizer):
    """An optimizer of a user: w -= rate * sign(m) * sqrt(|m|), m a moving average of gradients."""

    def __init__(self, learning_rate: float = 0.01, **kwargs: Any) -> None:
        super().__init__(learning_rate=learning_rate, **kwargs)

    def build(self, variables: list[keras.Variable]) -> None:
        if not self.built:
            super().build(variables)
            self.averages = self.add_optimizer_variables(variables, "average")

    def update_step(self, gradient: Any, variable: keras.Variable, learning_rate: Any) -> None:
        average = self.averages[self._get_variable_index(variable)]
        self.assign_add(average, (keras.ops.convert_to_tensor(gradient) - average) * 0.5)
        step = keras.ops.sign(average) * keras.ops.sqrt(keras.ops.abs(average) + 1e-6)
        self.assign_sub(variable, step * keras.ops.cast(learning_rate, variable.dtype))


class AddLoss(keras.layers.Layer):
    """Adds a function of its input, and of a random draw for each value."""

    def __init__(self, loss: Callable[[Any, Any], Any], draws: bool = False) -> None:
        super().__init__()
        self.loss, self.seed = loss, keras.random.SeedGenerator(3) if draws else None

    def call(self, z: Any) -> Any:
        drawn = 0.0 if self.seed is None else 0.01 * keras.random.normal(keras.ops.shape(z), seed=self.seed)
        self.add_loss(self.loss(z, drawn))
        return z


class Hasty(keras.optimizers.SGD):
    """Updates ten times as far, in the method that Keras's step calls."""

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        return super().apply_gradients([(10.0 * gradient, variable) for gradient, variable in grads_and_vars])


def cosine() -> keras.optimizers.schedules.LearningRateSchedule:
    return keras.optimizers.schedules.CosineDecay(1e-2, 2 * UPDATES)


OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "rmsprop": lambda: keras.optimizers.RMSprop(1e-2, clipvalue=0.1),
    "adam": lambda: keras.optimizers.Adam(1e-2, global_clipnorm=0.5),
    "adamw": lambda: keras.optimizers.AdamW(cosine(), weight_decay=0.1, use_ema=True, ema_momentum=0.5),
    "nadam": lambda: keras.optimizers.Nadam(1e-2, clipnorm=0.5),
    "lion": lambda: keras.optimizers.Lion(1e-2),
    "adafactor": lambda: Adafactor(momentum=0.9, weight_decay=0.1),
    "own": SignedRoot,
}


def data_of(case: Case, size: int = SIZE) -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    return case.inputs(draw, size), case.targets(draw, size)


def pair(build: Callable[[], keras.Model], **compiled: Any) -> tuple[keras.Model, keras.Model]:
    """Two equal models. Values of `compiled` that are functions make a new object for each."""
    models = []
    for _ in range(2):
        keras.utils.set_random_seed(0)
        model = build()
        model.compile(**{name: value() if name == "optimizer" else value for name, value in compiled.items()})
        models.append(model)
    return models[0], models[1]


def run(model: keras.Model, data: Any, updates: int = UPDATES, **arguments: Any) -> dict[str, Any]:
    settings = {"train.steps": updates, "log.every": 1, **arguments.pop("settings", {})}
    return accumtrain.fit(
        model,
        data,
        **{"batch_size": EXAMPLES, "steps": 4, "validation_data": data, "settings": settings, **arguments},
    )


def compiled(build: Callable[[], keras.Model] = mlp, **arguments: Any) -> keras.Model:
    model = build()
    model.compile(**{"optimizer": "adam", "loss": CROSS_ENTROPY, **arguments})
    return model


class Numbers(accumtrain.Split):
    """Example i is the number i; its target is i % 4."""

    size, shape, channels = 64, None, 1

    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.cast(index[:, None], tf.float32) / 64.0, tf.cast(index % 4, tf.int32)
