"""What the suite of GradientAccumulator (github.com/andreped/GradientAccumulator, commit 033aeda) tests, at 1e-5.

Theirs compares accuracies to two decimals, or trains and compares nothing. Here each test names the file of `tests/`
there that it answers. The others are answered elsewhere:

| there | here, in tests/keras; tests without a file are in test_accumulate_optimizer.py |
|---|---|
| test_optimizer_invariance.py, test_optimizer_wrapper.py | test_matrix.py: 8 optimizers, 2, 4 and 8 micro-batches |
| test_optimizer_wrapper.py, MEAN and SUM | `test_sum_is_the_mean_times_the_steps` |
| test_model_distribute.py, test_optimizer_distribute.py | test_matrix.py: replicas; test_workers_of_fit.py: workers |
| test_sparse_optimizer.py | test_matrix.py, `lstm`; `test_an_embedding_adds_only_its_rows` |
| test_mixed_precision.py, overflows | `test_an_overflow_drops_the_window_and_halves_the_scale` |

Their AccumBatchNormalization normalises each micro-batch by itself, as Keras's layer does under either door here. What
differs: its moving variance moves towards the mean of the micro-batches' variances, which lacks the variance between
them; that of `accumulate` is of the whole batch. It waits for `accum_steps` calls, counts micro-batches of any size
alike, and moves while `trainable` is False. Their clipping takes the first axis of a kernel of rank 3 as the inputs of
a unit, and refuses ranks above 5; here all axes but the last are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


@pytest.fixture(params=["float32", "mixed_float16"])
def policy(request: pytest.FixtureRequest) -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(request.param)
    yield
    keras.config.set_dtype_policy(before)


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


@pytest.mark.parametrize("rank", range(7))
def test_a_unit_of_any_rank_is_clipped_by_its_weights(rank):
    """test_adaptive_gradient_clipping.py: norms of units, there up to rank 5."""
    shape = (2, 3, 2, 2, 3, 4)[6 - rank :]
    weight, gradient = DRAW.normal(size=shape), DRAW.normal(size=shape)
    clipped = clip_by_weight(tf.constant(gradient), tf.constant(weight), 0.5).numpy()
    units = [(..., unit) for unit in range(4)] if rank > 1 else [...]
    for unit in units:
        limit = 0.5 * max(np.linalg.norm(weight[unit]), 1e-3) / np.linalg.norm(gradient[unit])
        np.testing.assert_allclose(clipped[unit], gradient[unit] * min(1.0, limit), rtol=1e-12)


@pytest.mark.slow
def test_batch_norm_in_one_micro_batch_is_that_of_keras():
    """test_batch_norm.py, test_compare_bn_layers: moving statistics, too."""
    one, whole = (fitted(normalised_mlp, (IMAGES, LABELS), door) for door in ("accumulate", None))
    assert_near(one, whole, normalised_mlp)
    for ours, theirs in zip(one.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=NEAR, atol=1e-7)


@DOORS
def test_batch_norm_normalises_each_micro_batch(policy, door, tmp_path):
    """test_batch_norm.py, test_mixed_precision.py and test_mp_batch_norm.py: updates of a loop written out."""
    split = fitted(normalised_mlp, (IMAGES, LABELS), door, steps=4)
    loop = trained_by_a_loop(normalised_mlp, (IMAGES, LABELS), 4, 100, CROSS_ENTROPY)
    assert_near(split, loop, normalised_mlp)
    assert_saved(split, TEST, tmp_path / "model.keras")


def test_the_moving_variance_has_that_between_micro_batches():
    """test_batch_norm.py, test_compare_accum_bn_expected_result: where the statistics differ from theirs."""
    build = lambda: classifier(keras.layers.BatchNormalization(momentum=0.9), shape=(6,))  # noqa: E731
    inputs = DRAW.normal(size=(32, 6)) * 2 + np.repeat(np.arange(4.0), 8)[:, None]  # whose mean drifts
    split = fitted(build, (inputs, np.zeros(32)), "accumulate", steps=4, batch=32, epochs=1)
    mean, variance = (statistic.numpy() for statistic in split.layers[0].non_trainable_variables)
    np.testing.assert_allclose(mean, 0.1 * inputs.mean(0), rtol=NEAR)
    np.testing.assert_allclose(variance, 0.9 + 0.1 * inputs.var(0), rtol=NEAR)
    theirs = 0.9 + 0.1 * inputs.reshape(4, 8, 6).var(1).mean(0)
    assert (variance > theirs + 0.05).all()


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


def test_a_batch_norm_of_several_places_is_refused():
    """test_bn_convnd.py has one layer in two places: of both, the variance between micro-batches is not to be had."""
    shared, inputs = keras.layers.BatchNormalization(), keras.Input((6,))
    model = keras.Model(inputs, shared(keras.layers.Dense(6)(shared(inputs))))
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=rf"{shared.name} is called 2 times .*Accumulate"):
        accumulate(model, 2).train_on_batch(np.ones((4, 6)), np.ones((4, 6)))


@pytest.mark.slow
def test_a_network_of_keras_applications_needs_no_other_layers():
    """test_bn_pretrained_swap.py: nothing is swapped, and the first statistics are those of the whole batch."""

    def build() -> keras.Model:
        return keras.applications.MobileNetV2((32, 32, 3), alpha=0.35, weights=None, classes=10)

    data = DRAW.uniform(size=(8, 32, 32, 3)).astype(np.float32), DRAW.integers(0, 10, 8)
    loss = keras.losses.SparseCategoricalCrossentropy()
    split, whole = (
        fitted(build, data, door, steps=2, batch=8, rate=0.0, epochs=1, loss=loss) for door in ("accumulate", None)
    )
    assert [type(layer) for layer in split.layers] == [type(layer) for layer in seeded(build).layers]
    first = [model.get_layer("bn_Conv1").non_trainable_variables for model in (split, whole)]
    for ours, theirs in zip(*first, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=NEAR)


@pytest.mark.slow
@DOORS
def test_several_inputs_and_tasks(door, tmp_path):
    """test_multitask.py: a reconstruction and a classification, with all losses and metrics."""

    def build() -> keras.Model:
        first, second = keras.Input((8, 8, 1)), keras.Input((8, 8))
        x = keras.layers.Conv2D(4, 5, padding="same", activation="relu")(first)
        x = keras.layers.UpSampling2D(2)(keras.layers.MaxPooling2D(2)(x))
        x = keras.layers.Conv2D(1, 5, padding="same", name="reconstructor")(x)
        y = keras.layers.Dense(32, activation="relu")(keras.layers.Flatten()(second))
        return keras.Model([first, second], [x, keras.layers.Dense(10, name="classifier")(y)])

    data = [IMAGES, IMAGES[..., 0]], [IMAGES, LABELS]
    compiled = {"loss": ["mse", CROSS_ENTROPY], "metrics": [[], ["accuracy"]]}
    split, whole = (fitted(build, data, each, steps=2, epochs=1, **compiled) for each in (door, None))
    assert_near(split, whole, build)
    np.testing.assert_allclose(split.evaluate(*data, verbose=0), whole.evaluate(*data, verbose=0), rtol=NEAR)
    assert_saved(split, data, tmp_path / "model.keras")


@DOORS
def test_the_number_of_parameters_stays(door):
    """test_param_count.py: that of the model as it was built."""
    model = fitted(mlp, (IMAGES, LABELS), door, steps=2)
    assert model.count_params() == seeded(mlp).count_params() == 64 * 32 + 32 + 32 * 10 + 10
