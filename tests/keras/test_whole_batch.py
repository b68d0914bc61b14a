"""accumulate(model, steps) with losses of the whole batch, against plain Keras with one big batch."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from accumtrain.config.compiled import OR_SAY
from accumtrain.keras import accumulate
from tests.keras.cases import AddLoss
from tests.keras.programs import run_python
from tests.keras.whole_batch_losses import (
    Contrast,
    OneEncoder,
    PerPositiveStep,
    TwoTowers,
    dice,
    hard_triplet,
    infonce,
    per_positive,
    supcon,
)

SIZE, BATCH = 80, 32  # the last batch of an epoch has 16 examples
DRAW = np.random.default_rng(0)
X, TEXTS, LABELS = DRAW.normal(size=(SIZE, 6)), DRAW.normal(size=(SIZE, 5)), DRAW.integers(0, 4, SIZE)
PARTNERS, MASKS = DRAW.normal(size=(SIZE, 8)), DRAW.integers(0, 2, (SIZE, 8))
WEIGHTS = DRAW.uniform(0.1, 2.0, SIZE)
WORDS = DRAW.integers(1, 9, (SIZE, 5)) * (np.arange(5) < DRAW.integers(1, 6, (SIZE, 1)))
TAGS = DRAW.integers(0, 2, (SIZE, 5, 1))


def tower(*layers: keras.layers.Layer) -> keras.Model:
    regular = keras.layers.Dense(16, "tanh", kernel_regularizer="l2", activity_regularizer="l1")
    return keras.Sequential([keras.Input((6,)), regular, *layers, keras.layers.Dense(8)])


def dense() -> keras.Model:
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(8)])


def two_towers(of_activity: str | None = None) -> keras.Model:
    model = TwoTowers(of_activity)
    model((X, TEXTS))
    return model


def one_encoder() -> keras.Model:
    model = OneEncoder()
    model((X, X, X))
    return model


def tagger() -> keras.Model:
    words = keras.layers.Embedding(9, 4, mask_zero=True)
    return keras.Sequential(
        [keras.Input((None,)), words, keras.layers.LSTM(4, return_sequences=True), keras.layers.Dense(1)]
    )


def pair(build: Any, loss: Any, steps: int, rate: float = 0.1, **compiled: Any) -> tuple[keras.Model, keras.Model]:
    """The same model with and without micro-batches."""
    models = []
    for split in (True, False):
        keras.utils.set_random_seed(3)
        model = build()
        model.compile(keras.optimizers.SGD(rate), loss, **compiled)
        models.append(accumulate(model, steps) if split else model)
    return models[0], models[1]


def distance(models: tuple[keras.Model, keras.Model], start: list[np.ndarray]) -> float:
    """Of the weights, as a share of the distance travelled."""
    found, expected = ([weight.numpy() for weight in model.trainable_variables] for model in models)
    difference = sum(float(np.sum((a - b) ** 2)) for a, b in zip(found, expected, strict=True))
    travelled = sum(float(np.sum((b - s) ** 2)) for b, s in zip(expected, start, strict=True))
    return (difference / travelled) ** 0.5


def assert_same_fit(models: tuple[keras.Model, keras.Model], *data: Any, bound: float = 1e-12, **fitted: Any) -> None:
    """Weights after two epochs of three updates, and all that is shown."""
    start = [weight.numpy() for weight in models[1].trainable_variables]
    arguments = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0, **fitted}
    found, expected = (model.fit(*data, **arguments).history for model in models)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=max(1e-6, bound), err_msg=name)
    assert distance(models, start) < bound


LOSSES = {
    "infonce": (tower, infonce, (X, PARTNERS)),
    "supcon": (tower, supcon, (X, LABELS)),
    "triplet": (tower, hard_triplet, (X, LABELS)),
    "dice": (tower, dice, (X, MASKS)),
    "positives": (tower, per_positive, (X, MASKS)),
    "pairs": (two_towers, None, ((X, TEXTS), LABELS)),
    "hard negatives": (one_encoder, None, ((X, X + 0.1, X[::-1]), LABELS)),
}


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        *((name, 5) for name in ("supcon", "pairs")),
        *(pytest.param(name, 7, marks=pytest.mark.slow) for name in LOSSES),
        *(pytest.param(name, steps, marks=pytest.mark.slow) for name in LOSSES for steps in (2, 32)),
    ],
)
def test_the_update_is_that_of_one_big_batch(name: str, steps: int, float64: None) -> None:
    build, loss, data = LOSSES[name]
    assert_same_fit(pair(build, loss, steps), *data)


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"jit_compile": True}, {"run_eagerly": True}, {"steps_per_execution": 3}], ids=str)
def test_compiled_in_another_way(how: dict[str, Any], float64: None) -> None:
    assert_same_fit(pair(tower, supcon, 4, **how), X, LABELS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "reduction", ["mean_with_sample_weight", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sum", "mean"))]
)
def test_weights_of_examples(reduction: str, float64: None) -> None:
    loss = Contrast(reduction=reduction)
    assert_same_fit(pair(tower, loss, 5, 0.01), X, LABELS, sample_weight=WEIGHTS)


def test_masks_and_sequences_whose_length_changes(float64: None) -> None:
    lengths = [4, 5, 3]

    def batches() -> Any:
        for place, length in enumerate(lengths):
            rows = slice(place * 20, place * 20 + 20)
            yield WORDS[rows, :length], TAGS[rows, :length]

    specs = tf.TensorSpec([None, None], tf.int64), tf.TensorSpec([None, None, 1], tf.int64)
    data = tf.data.Dataset.from_generator(batches, output_signature=specs)
    data = data.apply(tf.data.experimental.assert_cardinality(len(lengths)))
    assert_same_fit(pair(tagger, PerPositiveStep(), 6, 1.0), data, batch_size=None)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")  # as Keras says of the output without a loss
def test_several_outputs_losses_and_metrics(float64: None) -> None:
    """Of different reductions; one of the metrics has to see the whole batch, and one output has no loss."""

    def build() -> keras.Model:
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(8, "tanh")(inputs)
        outputs = {name: keras.layers.Dense(size, name=name)(hidden) for name, size in (("z", 4), ("r", 1), ("n", 2))}
        return keras.Model(inputs, outputs)

    loss = {"z": Contrast(reduction="sum"), "r": "mse", "n": None}
    metrics = {"r": ["mae"], "z": [hard_triplet], "n": []}
    models = pair(build, loss, 5, 0.01, loss_weights={"z": 0.5, "r": 2.0, "n": 1.0}, metrics=metrics)
    assert_same_fit(models, X, {"z": LABELS, "r": TEXTS[:, :1], "n": TEXTS[:, :2]})


def test_a_loss_that_reads_a_weight(float64: None) -> None:
    models = pair(dense, None, 5)
    for model in models:
        kernel = model.layers[0].kernel
        model.compile(keras.optimizers.SGD(0.1), lambda y, z, k=kernel: supcon(y, z) + ops.sum(k * k * k))
    assert_same_fit(models, X, LABELS)


class Counting(TwoTowers):
    """Counts its passes, draws in its loss, and shows a metric of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = self.add_weight(shape=(), initializer="zeros", trainable=False, name="passes")
        self.noise, self.shown = keras.layers.GaussianNoise(0.1, seed=1), keras.metrics.Mean(name="shown")

    def call(self, x: Any) -> Any:
        self.passes.assign_add(1.0)
        return super().call(x)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        self.shown.update_state(self.passes)
        noisy = {name: self.noise(value, training=True) for name, value in y_pred.items()}
        return super().compute_loss(x, y, noisy) * self.passes


def test_state_that_a_loss_reads_and_changes(float64: None) -> None:
    """With one micro-batch, as a counter of passes counts micro-batches."""

    def build() -> keras.Model:
        model = Counting()
        model((X, TEXTS))
        return model

    assert_same_fit(pair(build, None, 1), (X, TEXTS), LABELS)


def test_dropout_and_batch_norm_are_those_of_each_micro_batch(float64: None) -> None:
    """Against a loop that keeps all activations: a pass for each micro-batch, then one gradient through all of them."""

    def build() -> keras.Model:
        return tower(keras.layers.BatchNormalization(), keras.layers.Dropout(0.5))

    split, plain = pair(build, supcon, 4)
    start = [weight.numpy() for weight in plain.trainable_variables]
    for _ in range(3):
        split.train_on_batch(X[:32], LABELS[:32])
        with tf.GradientTape() as tape:
            outputs, of_layers = [], []
            for place in range(0, 32, 8):
                outputs.append(plain(X[place : place + 8], training=True))
                of_layer, of_weights = plain.losses
                of_layers.append(of_layer)
            loss = supcon(LABELS[:32], tf.concat(outputs, 0)) + tf.add_n(of_layers) / 4 + of_weights
        gradients = tape.gradient(loss, plain.trainable_weights)
        plain.optimizer.apply_gradients(zip(gradients, plain.trainable_weights, strict=True))
    assert distance((split, plain), start) < 1e-12


def test_moving_statistics_are_those_of_the_whole_batch() -> None:
    models = []
    for word in ("batch", None):
        keras.utils.set_random_seed(0)
        model = tower(keras.layers.BatchNormalization())
        model.compile(keras.optimizers.SGD(0.0), "mse")
        models.append(accumulate(model, 4, loss=word))
        models[-1].train_on_batch(X[:32], PARTNERS[:32])
    for one, other in zip(*(model.non_trainable_variables for model in models), strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(name: str, policy: Any) -> None:
    policy(name)
    assert_same_fit(pair(dense, Contrast(), 4, 0.01), X.astype("float32"), LABELS, bound=3e-2)


REPLICAS = """
import keras, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
keras.config.set_floatx("float64")
from accumtrain.keras import accumulate
from tests.keras.test_whole_batch import LABELS, WEIGHTS, X, assert_same_fit
from tests.keras.whole_batch_losses import Contrast, supcon

def check(loss, *data, **fitted):
    with tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]).scope():
        keras.utils.set_random_seed(3)
        split = accumulate(tower_of_means(), 3)
        split.compile(keras.optimizers.SGD(0.01), loss)
    keras.utils.set_random_seed(3)
    plain = tower_of_means()
    plain.compile(keras.optimizers.SGD(0.01), loss)
    assert_same_fit((split, plain), *data, **fitted)

def tower_of_means():  # the last batch leaves a replica with fewer examples
    hidden = keras.layers.Dense(16, "tanh", kernel_regularizer="l2")
    return keras.Sequential([keras.Input((6,)), hidden, keras.layers.Dense(8)])

check(supcon, X[:71], LABELS[:71])
check(Contrast(), X[:71], LABELS[:71], sample_weight=WEIGHTS[:71])
check(Contrast(reduction="sum"), X, LABELS)
"""


@pytest.mark.slow
def test_examples_of_other_replicas_are_compared(tmp_path: Any) -> None:
    run_python("-c", REPLICAS)


class Counter(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.passes = tf.Variable(0.0)

    def call(self, x: Any) -> Any:
        self.passes.assign_add(1.0)
        return x


class Queue(keras.losses.Loss):
    def __init__(self) -> None:
        super().__init__()
        self.mean = keras.Variable(0.0)

    def call(self, y: Any, z: Any) -> Any:
        self.mean.assign(ops.mean(z))
        return ops.mean(z - self.mean, -1)


def of_outputs(function: Any) -> keras.Model:
    inputs = keras.Input((6,))
    return keras.Model(inputs, keras.layers.Lambda(function)(keras.layers.Dense(8)(inputs)))


NOT_FOR_EACH = f"not real numbers for each example .*{OR_SAY}$"


class Draws(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return x + tf.random.normal(tf.shape(x), dtype=x.dtype)


@pytest.mark.parametrize(
    ("build", "loss", "data", "message"),
    [
        (dense, Contrast(reduction=None), (X, LABELS), "has reduction=None"),
        (lambda: tower(Draws()), supcon, (X, LABELS), f"draws random numbers by RandomStandardNormal.*{OR_SAY}$"),
        (lambda: tower(Counter()), supcon, (X, LABELS), f"changes a tf.Variable by AssignAdd.*{OR_SAY}$"),
        (lambda: of_outputs(lambda z: ops.mean(z, 0, keepdims=True)), supcon, (X, LABELS), NOT_FOR_EACH),
        (lambda: of_outputs(ops.mean), per_positive, (X, MASKS), NOT_FOR_EACH),
        (dense, Queue(), (X, LABELS), "changes a variable that is not its own"),
        (lambda: two_towers("l2"), None, ((X, TEXTS), LABELS), f"add losses, and its compute_loss .*{OR_SAY}$"),
        (lambda: tower(AddLoss(lambda z, _: ops.mean(z))), supcon, (X, LABELS), "say layer_losses="),
    ],
    ids=[
        "no number",
        "other draws",
        "counter",
        "a row",
        "a scalar",
        "queue",
        "compute_loss and add_loss",
        "add_loss",
    ],
)
def test_what_cannot_be_exact_is_refused(build: Any, loss: Any, data: Any, message: str) -> None:
    model, _ = pair(build, loss, 4)
    with pytest.raises(ValueError, match=f"(?s){message}"):
        model.fit(*data, batch_size=BATCH, verbose=0)


@pytest.mark.slow
def test_the_number_of_micro_batches_is_found() -> None:
    model = tower()
    model.compile("sgd", supcon)
    accumulate(model, "auto", data=(X, LABELS), batch_size=BATCH, memory_limit_mb=256)
    assert np.isfinite(model.fit(X, LABELS, batch_size=BATCH, verbose=0).history["loss"][0])
