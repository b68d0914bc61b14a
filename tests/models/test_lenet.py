"""LeNet-5 against Keras's own layers with the same weights."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop import kernels
from accumtrain.backprop.mode import Mode
from accumtrain.models.build import build_model
from accumtrain.models.layers import ModelSpec
from tests.engine.small import CLASSES, examples, lenet


@pytest.mark.parametrize(
    ("height", "width", "paddings"),
    [
        (32, 32, ("valid", "valid")),
        (33, 35, ("valid", "valid")),
        (28, 28, ("same", "valid")),
        (20, 20, ("same", "valid")),
        (18, 40, ("same", "same")),
        (8, 8, ("same", "same")),
    ],
)
def test_the_logits_are_those_of_keras(height, width, paddings):
    shape = (height, width, 3)
    model = build_model(lenet(), ModelSpec(shape, CLASSES, seed=1))
    for bias in (variable for variable in model.trainable_variables if len(variable.shape) == 1):
        bias.assign(tf.random.stateless_normal(bias.shape, [1, 2]))  # they start at 0
    images = examples(4, shape)["inputs"]
    reference = keras.Sequential([keras.Input(shape)])
    for filters, padding in zip((6, 16), paddings, strict=True):
        reference.add(keras.layers.Conv2D(filters, 5, padding=padding, activation="relu"))
        reference.add(keras.layers.MaxPooling2D(2, padding="same"))
    reference.add(keras.layers.Flatten())
    for units, activation in ((120, "relu"), (84, "relu"), (CLASSES, None)):
        reference.add(keras.layers.Dense(units, activation=activation))
    weights = {tuple(variable.shape): variable for variable in model.trainable_variables}
    reference.set_weights([weights[tuple(own.shape)] for own in reference.weights])
    np.testing.assert_allclose(model(images, Mode(training=False)), reference(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("emulated", [False, True])
def test_in_bfloat16_logits_and_gradients_are_those_of_float32_in_its_precision(monkeypatch, emulated):
    """Also where a CPU has no instructions for it, so that kernels compute in float32."""
    monkeypatch.setattr(kernels, "is_emulated", lambda dtype: emulated and dtype == tf.bfloat16)
    batch = examples(8, (12, 12, 3))
    found = {}
    for precision in ("float32", "bfloat16"):
        model = build_model(lenet(), ModelSpec((12, 12, 3), CLASSES, precision, seed=1))
        with tf.GradientTape() as tape:
            logits = model(batch["inputs"], Mode(training=True))
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(batch["targets"], logits))
        assert logits.dtype == tf.float32
        found[precision] = [logits, *tape.gradient(loss, model.trainable_variables)]
        without_a_tape = model(batch["inputs"], Mode(training=True))
        np.testing.assert_allclose(without_a_tape, logits, atol=0.01 * np.abs(logits).max())
    for exact, rounded in zip(found["float32"], found["bfloat16"], strict=True):
        assert rounded.dtype == tf.float32
        assert np.linalg.norm(rounded - exact) < 0.2 * np.linalg.norm(exact), "as biases are sums of many numbers"
