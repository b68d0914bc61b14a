"""The layer whose losses need no logits of all rows, against a dense layer and Keras's own loss."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop import linear_logits
from accumtrain.keras import LinearCrossEntropy, accumulate, output_as_loss

ROWS, TIMES, CHANNELS, CLASSES = 12, 5, 6, 1100


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    """Chunks of 10 rows."""
    monkeypatch.setattr(linear_logits, "LEAST_BYTES", 10 * CLASSES * 8)


def draw(*shape, seed=0, dtype="float64"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def labels(*shape, seed=1):
    return np.random.default_rng(seed).integers(0, CLASSES, shape)


@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, TIMES)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("ignored", [None, -1, 3])
@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("in_graph", [False, True])
def test_losses_and_gradients_are_those_of_keras(shape, smoothing, ignored, use_bias, weighted, in_graph):
    layer = LinearCrossEntropy(CLASSES, use_bias, smoothing, ignored, dtype="float64")
    hidden, targets, upstream = tf.constant(draw(*shape, CHANNELS)), labels(*shape), tf.constant(draw(*shape, seed=2))
    if ignored is not None:
        targets.flat[::3] = ignored
    weight = np.abs(draw(*shape, seed=3)) if weighted else None
    layer(hidden, targets)
    if use_bias:
        layer.bias.assign(draw(CLASSES, seed=4))
    variables = [each.value for each in layer.trainable_variables]

    def plain():
        logits = tf.einsum("...c,cv->...v", hidden, layer.kernel.value) + (layer.bias.value if use_bias else 0.0)
        one_hot = tf.one_hot(targets, CLASSES, dtype=tf.float64)
        losses = keras.losses.categorical_crossentropy(one_hot, logits, from_logits=True, label_smoothing=smoothing)
        losses = losses if weight is None else losses * weight
        return losses if ignored is None else tf.where(targets == ignored, tf.zeros_like(losses), losses)

    def differentiate(function):
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            losses = function()
        return [losses, *tape.gradient(losses, [hidden, *variables], output_gradients=upstream)]

    def run(function):
        return differentiate(function)

    run = tf.function(run, autograph=False) if in_graph else run
    found, expected = run(lambda: layer(hidden, targets, weight)), run(plain)
    for mine, keras_own in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, keras_own, rtol=0, atol=1e-12 * np.abs(keras_own).max())


def test_logits_for_predictions():
    layer = LinearCrossEntropy(CLASSES, dtype="float64")
    hidden = draw(ROWS, TIMES, CHANNELS)
    layer(hidden, labels(ROWS, TIMES))
    np.testing.assert_allclose(layer.compute_logits(hidden), hidden @ layer.kernel.numpy(), atol=1e-14)


def build_model(dtype="float32"):
    hidden, targets = keras.Input([TIMES, 3]), keras.Input([TIMES], dtype="int32")
    initializer = keras.initializers.GlorotUniform(0)
    hidden_values = keras.layers.Dense(CHANNELS, "tanh", kernel_initializer=initializer, dtype=dtype)(hidden)
    losses = LinearCrossEntropy(CLASSES, ignore_class=-1, dtype=dtype)(hidden_values, targets)
    return keras.Model([hidden, targets], losses)


def compiled(model):
    model.layers[-1].kernel.assign(draw(CHANNELS, CLASSES, dtype="float32"))
    model.compile(keras.optimizers.SGD(0.5), loss=output_as_loss)
    return model


def test_accumulate_knows_it():
    """Without a declaration, four micro-batches make the update of their batch, and no loss of the whole batch."""
    x, targets = draw(ROWS, TIMES, 3, dtype="float32"), labels(ROWS, TIMES)
    targets[:, -1] = -1
    plain, accumulated = compiled(build_model()), accumulate(compiled(build_model()), 4)
    for model in (plain, accumulated):
        model.fit([x, targets], targets, batch_size=ROWS, epochs=2, shuffle=False, verbose=0)
    for expected, found in zip(plain.weights, accumulated.weights, strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-6)
    assert plain.evaluate([x, targets], targets, verbose=0) < np.log(CLASSES) * 2


def test_it_is_saved_and_loaded(tmp_path):
    model = compiled(build_model())
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    batch = [draw(ROWS, TIMES, 3, dtype="float32"), labels(ROWS, TIMES)]
    assert (loaded.predict(batch, verbose=0) == model.predict(batch, verbose=0)).all()
    assert loaded.layers[-1].ignore_class == -1


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_a_policy_of_16_bits_has_losses_of_32(policy):
    layer, exact = LinearCrossEntropy(CLASSES, dtype=policy), LinearCrossEntropy(CLASSES)
    hidden, targets = draw(ROWS, CHANNELS, dtype="float32"), labels(ROWS)
    exact(hidden, targets)
    losses = layer(hidden, targets)
    layer.kernel.assign(exact.kernel)
    losses = layer(hidden, targets)
    assert losses.dtype == "float32"
    np.testing.assert_allclose(losses, exact(hidden, targets), rtol=1e-2)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"units": 0}, "units=0: must be the number of classes"),
        ({"units": 2.0}, "units=2.0: must be the number of classes"),
        ({"units": 3, "label_smoothing": 1.0}, r"label_smoothing=1.0: must be at least 0 and below 1"),
    ],
)
def test_other_arguments_are_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        LinearCrossEntropy(**keys)
