"""The tests of GradientAccumulator's suite (github.com/andreped/GradientAccumulator, commit 033aeda), at 1e-5.

Each test names the file of `tests/` there that it answers. Other files of this folder answer the others: test_matrix.py
optimizers, replicas, sparse gradients and several outputs, test_workers_of_fit.py workers, test_accumulate_optimizer.py
overflows, sums and embeddings, test_accumulate_step.py moving statistics of the whole batch and inputs by name, and
test_recompute.py one layer in two places, which is refused.

Their AccumBatchNormalization normalises each micro-batch by itself, as Keras's layer does under either door here. What
differs: its moving variance moves towards the mean of the micro-batches' variances, which lacks the variance between
them; that of `accumulate` is of the whole batch. It waits for `accum_steps` calls, counts micro-batches of any size
alike, and moves while `trainable` is False. Their clipping takes the first axis of a kernel of rank 3 as the inputs of
a unit, and refuses ranks above 5; here all axes but the last are.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from accumtrain.keras import Accumulate, accumulate, load_digits
from accumtrain.optim.optimizer import clip_by_weight
from tests.keras.matrix import Weights, difference

NEAR = 1e-5  # of the distance the weights have gone
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
(IMAGES, LABELS), TEST = load_digits()
IMAGES, LABELS, TEST = IMAGES[:400] / 16.0, LABELS[:400], (TEST[0] / 16.0, TEST[1])
DRAW = np.random.default_rng(0)
DOORS = pytest.mark.parametrize("door", ["Accumulate", "accumulate"])
Build = Callable[[], keras.Model]


def classifier(*layers: keras.layers.Layer, shape: tuple[int, ...] = (8, 8, 1), outputs: int = 10) -> keras.Model:
    """Layers between images and logits, with the same weights at every call; the logits are float32."""
    last = keras.layers.Dense(outputs, dtype="float32")
    return keras.Sequential([keras.Input(shape), *layers, keras.layers.Flatten(), last])


def mlp() -> keras.Model:
    return classifier(keras.layers.Flatten(), keras.layers.Dense(32, activation="relu"))


def normalised_mlp() -> keras.Model:
    layers = [keras.layers.Dense(32), keras.layers.BatchNormalization(), keras.layers.Activation("relu")]
    return classifier(keras.layers.Flatten(), *layers)


def seeded(build: Build) -> keras.Model:
    keras.utils.set_random_seed(123)
    return build()


def fitted(
    build: Build,
    data: tuple[Any, Any],
    door: str | None = None,
    steps: int = 1,
    batch: int = 100,
    rate: float = 1e-2,
    epochs: int = 2,
    loss: Any = CROSS_ENTROPY,
    **compiled: Any,
) -> keras.Model:
    """A model trained on batches of `batch` examples, by one of the doors in `steps` micro-batches, or by Keras."""
    model, optimizer = seeded(build), keras.optimizers.SGD(rate)
    wrapped = Accumulate(optimizer, steps) if door == "Accumulate" else optimizer
    model.compile(wrapped, loss, **compiled)
    if door == "accumulate":
        accumulate(model, steps)
    size = batch // steps if door == "Accumulate" else batch
    model.fit(*data, batch_size=size, epochs=epochs, shuffle=False, verbose=0)
    return model


def trained_by_a_loop(build: Build, data: tuple[Any, Any], steps: int, batch: int, loss: Any) -> keras.Model:
    """Updates of the mean gradient of equal micro-batches, written out. Two epochs.

    Compiled, as `fit` is: on CPUs with instructions for float16 a bias is then added before a product is rounded.
    """
    model, optimizer = seeded(build), keras.optimizers.SGD(1e-2)
    if keras.config.dtype_policy().name == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def gradients_of(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            scaled = optimizer.scale_loss(loss(y, model(x, training=True)))
        found: list[tf.Tensor] = tape.gradient(scaled, [weight.value for weight in model.trainable_variables])
        return found

    for first in [*range(0, len(data[0]), batch)] * 2:
        gradients = [np.zeros(weight.shape, np.float32) for weight in model.trainable_variables]
        for begin in range(first, first + batch, batch // steps):
            x, y = (each[begin : begin + batch // steps] for each in data)
            found = gradients_of(tf.constant(x), tf.constant(y))
            gradients = [total + gradient / steps for total, gradient in zip(gradients, found, strict=True)]
        optimizer.apply(gradients, model.trainable_variables)
    return model


def trainable(model: keras.Model) -> Weights:
    return [weight.numpy() for weight in model.trainable_variables]


def assert_near(actual: keras.Model, expected: keras.Model, build: Build) -> None:
    assert difference(trainable(expected), trainable(actual), trainable(seeded(build))) <= NEAR


def assert_saved(model: keras.Model, data: tuple[Any, Any], file: Any) -> None:
    """A file of the model gives the same loss and metrics."""
    model.save(file)
    found = keras.saving.load_model(file).evaluate(*data, verbose=0)
    np.testing.assert_allclose(found, model.evaluate(*data, verbose=0), rtol=1e-6)


@DOORS
def test_result_is_that_of_the_big_batch(door, tmp_path):
    """test_expected_result.py and test_model_expected_result.py: also as loaded from a file, and on other data."""
    data, metrics = (IMAGES, LABELS), [keras.metrics.SparseCategoricalAccuracy()]
    whole = fitted(mlp, data, metrics=metrics)
    split = fitted(mlp, data, door, steps=2, metrics=[keras.metrics.SparseCategoricalAccuracy()])
    assert_near(split, whole, mlp)
    np.testing.assert_allclose(split.evaluate(*TEST, verbose=0), whole.evaluate(*TEST, verbose=0), rtol=NEAR)
    assert_saved(split, TEST, tmp_path / "model.keras")


def test_adaptive_clipping_is_that_of_the_big_batch(tmp_path):
    """test_adaptive_gradient_clipping.py: the gradient of the window is clipped, not those of micro-batches."""

    def cnn() -> keras.Model:
        return classifier(keras.layers.Conv2D(4, 3), keras.layers.Activation("relu"))

    models = []
    for steps in (4, 1):
        model = seeded(cnn)
        model.compile(Accumulate(keras.optimizers.SGD(1e-1), steps, adaptive_clip=0.05), CROSS_ENTROPY)
        model.fit(IMAGES, LABELS, batch_size=100 // steps, epochs=2, shuffle=False, verbose=0)
        models.append(model)
    assert_near(*models, cnn)
    assert_saved(models[0], TEST, tmp_path / "model.keras")
    unclipped = fitted(cnn, (IMAGES, LABELS), rate=1e-1)
    assert difference(trainable(unclipped), trainable(models[0]), trainable(seeded(cnn))) > 0.1


@pytest.mark.parametrize("rank", [0, 3, 6])
def test_a_unit_of_any_rank_is_clipped_by_its_weights(rank):
    """test_adaptive_gradient_clipping.py: norms of units, there up to rank 5."""
    shape = (2, 3, 2, 2, 3, 4)[6 - rank :]
    weight, gradient = DRAW.normal(size=shape), DRAW.normal(size=shape)
    clipped = clip_by_weight(tf.constant(gradient), tf.constant(weight), 0.5).numpy()
    units = [(..., unit) for unit in range(4)] if rank > 1 else [...]
    for unit in units:
        limit = 0.5 * max(np.linalg.norm(weight[unit]), 1e-3) / np.linalg.norm(gradient[unit])
        np.testing.assert_allclose(clipped[unit], gradient[unit] * min(1.0, limit), rtol=1e-12)


@DOORS
@pytest.mark.parametrize("name", ["float32", "mixed_float16"])
def test_batch_norm_normalises_each_micro_batch(policy, name, door, tmp_path):
    """test_batch_norm.py, test_mixed_precision.py and test_mp_batch_norm.py: updates of a loop written out."""
    policy(name)
    split = fitted(normalised_mlp, (IMAGES, LABELS), door, steps=4)
    loop = trained_by_a_loop(normalised_mlp, (IMAGES, LABELS), 4, 100, CROSS_ENTROPY)
    assert_near(split, loop, normalised_mlp)
    assert_saved(split, TEST, tmp_path / "model.keras")


@pytest.mark.slow
@DOORS
@pytest.mark.parametrize(("axes", "steps"), [(2, 4), (3, 16)], ids=["2d", "3d"])
def test_batch_norm_between_convolutions_and_dense_layers(axes, steps, door):
    """test_bn_convnd.py: micro-batches of several examples, and of one, whose dense features are normalised to 0."""
    convolution = {2: keras.layers.Conv2D, 3: keras.layers.Conv3D}[axes]

    def build() -> keras.Model:
        layers = [convolution(4, 3), keras.layers.BatchNormalization(), keras.layers.Activation("relu")]
        dense = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Activation("relu")]
        return classifier(*layers, keras.layers.Flatten(), *dense, shape=(*[8] * axes, 1), outputs=1)

    draw = np.random.default_rng(1)
    data = draw.integers(0, 2, (16, *[8] * axes, 1)).astype(np.float32), draw.integers(0, 2, (16, 1))
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    split = fitted(build, data, door, steps=steps, batch=16, loss=loss)
    assert_near(split, trained_by_a_loop(build, data, steps, 16, loss), build)
