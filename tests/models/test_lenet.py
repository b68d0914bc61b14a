"""LeNet-5 against Keras's own layers with the same weights."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.models.build_model import build_model
from accumtrain.models.spec import ModelSpec
from tests.engine.small import CLASSES, examples, lenet


@pytest.mark.parametrize(
    ("size", "paddings"),
    [
        (32, ("valid", "valid")),
        (28, ("same", "valid")),
        (20, ("same", "valid")),
        (18, ("same", "same")),
        (8, ("same", "same")),
    ],
)
def test_the_logits_are_those_of_keras(size, paddings):
    shape = (size, size, 3)
    model = build_model(lenet(), ModelSpec(shape, CLASSES, seed=1))
    for bias in (variable for variable in model.trainable_variables if len(variable.shape) == 1):
        bias.assign(tf.random.stateless_normal(bias.shape, [1, 2]))  # they start at 0
    images = examples(4, shape)["image"]
    reference = keras.Sequential([keras.Input(shape)])
    for filters, padding in zip((6, 16), paddings, strict=True):
        reference.add(keras.layers.Conv2D(filters, 5, padding=padding, activation="relu"))
        reference.add(keras.layers.MaxPooling2D(2, padding="same"))
    reference.add(keras.layers.Flatten())
    for width, activation in ((120, "relu"), (84, "relu"), (CLASSES, None)):
        reference.add(keras.layers.Dense(width, activation=activation))
    weights = {tuple(variable.shape): variable for variable in model.trainable_variables}
    reference.set_weights([weights[tuple(own.shape)] for own in reference.weights])
    np.testing.assert_allclose(model(images, Mode(training=False)), reference(images), rtol=1e-4, atol=1e-5)
