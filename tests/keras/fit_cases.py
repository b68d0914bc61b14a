"""Data, pairs of models and a short call of fit for the tests of accumtrain.fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import accumtrain
from tests.keras.cases import EXAMPLES, UPDATES, Case, mlp

SIZE = 96  # examples of the data
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


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

    size, image_shape, channels = 64, None, 1

    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.cast(index[:, None], tf.float32) / 64.0, tf.cast(index % 4, tf.int32)
