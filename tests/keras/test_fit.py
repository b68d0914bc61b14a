"""accumtrain.fit: the updates of plain Keras with the whole batch, continued runs, what it takes and refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import accumtrain
from accumtrain.data.pipeline import train_batches
from accumtrain.errors import AccumtrainError, ConfigError, DataError, Preempted
from accumtrain.keras import Accumulate
from accumtrain.keras.given_examples import take_data
from tests.keras.cases import CASES, EXAMPLES, OPTIMIZERS, UPDATES, Case, mlp, vectors

SIZE = 96  # examples of the data
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture
def float64() -> Iterator[None]:
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


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


def train_in_keras(model: keras.Model, data: Any, validation_data: Any, updates: int) -> None:
    """Makes the updates of `fit` by a GradientTape, with the whole batches."""
    given = take_data(model, data, validation_data, 0.5)
    stream = iter(train_batches(given, batch=EXAMPLES, first=0, seed=0))
    for _ in range(updates):
        batch = next(stream)
        y, *weight = batch["label"]
        with tf.GradientTape() as tape:
            y_pred = model(batch["image"], training=True)
            loss = model.compute_loss(batch["image"], y, y_pred, *weight)
            scaled = model.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, [variable.value for variable in model.trainable_variables])
        # dense, as Keras squares rows of a sparse one that belong to the same word one by one
        dense = [None if each is None else tf.convert_to_tensor(each) for each in gradients]
        model.optimizer.apply_gradients(zip(dense, model.trainable_variables, strict=True))
    model.optimizer.finalize_variable_values(model.trainable_variables)


def distance(model: keras.Model, other: keras.Model, start: list[np.ndarray]) -> float:
    """Of the weights, as a share of the distance travelled."""
    weights = [(a.numpy(), b.numpy()) for a, b in zip(model.variables, other.variables, strict=True)]
    weights = [(a, b) for a, b in weights if a.dtype.kind == "f"]
    start = [each for each in start if each.dtype.kind == "f"]
    difference = sum(float(np.sum((a - b) ** 2)) for a, b in weights)
    travelled = sum(float(np.sum((b - s) ** 2)) for (_, b), s in zip(weights, start, strict=True))
    return (difference / travelled) ** 0.5


def evaluated(model: keras.Model, data: Any) -> dict[str, float]:
    """What Keras measures on (x, y, sample_weight)."""
    x, y, weight = data
    return model.evaluate(x, y, sample_weight=weight, batch_size=SIZE, verbose=0, return_dict=True)


def run(model: keras.Model, data: Any, updates: int = UPDATES, **arguments: Any) -> dict[str, Any]:
    settings = {"train.steps": updates, "log.every": 1, **arguments.pop("settings", {})}
    return accumtrain.fit(
        model,
        data,
        **{"batch_size": EXAMPLES, "steps": 4, "validation_data": data, "settings": settings, **arguments},
    )


# --- the updates --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        *[("mlp", "adamw"), ("lstm", "adamw"), ("two_outputs", "adam")],
        pytest.param("mobilenet", "adamw", marks=pytest.mark.slow),
    ],
)
def test_updates_are_those_of_the_whole_batch(name: str, optimizer: str, float64: None) -> None:
    """With its schedule, average, decay and clipping, and through frozen batch normalisation."""
    case = CASES[name]
    ours, plain = pair(case.build, optimizer=OPTIMIZERS[optimizer], loss=case.losses, loss_weights=case.loss_weights)
    start, data = [variable.numpy() for variable in plain.variables], data_of(case)
    run(ours, data)
    train_in_keras(plain, data, data, UPDATES)
    assert distance(ours, plain, start) < 1e-12
    assert int(ours.optimizer.iterations.numpy()) == UPDATES


@pytest.mark.parametrize("memory", ["store", "recompute"])
def test_losses_of_weights_and_layers_and_example_weights(memory: str, float64: None) -> None:
    """Regularizers, activity losses and sample_weight, whole and between cut points."""

    def build() -> keras.Model:
        inputs = x = keras.Input((8, 8, 3))
        for _ in range(4):
            x = keras.layers.Conv2D(4, 3, padding="same", kernel_regularizer="l2", activity_regularizer="l1")(x)
            x = keras.layers.Activation("tanh")(x)
        return keras.Model(inputs, keras.layers.Dense(4)(keras.layers.GlobalAveragePooling2D()(x)))

    draw = np.random.default_rng(1)
    data = (*data_of(CASES["cnn"]), draw.uniform(0, 2, SIZE))
    ours, plain = pair(build, optimizer=lambda: keras.optimizers.SGD(0.1), loss=CROSS_ENTROPY)
    start = [variable.numpy() for variable in plain.variables]
    summary = run(ours, data, memory=memory)
    train_in_keras(plain, data, data, UPDATES)
    assert distance(ours, plain, start) < 1e-12
    assert summary["test"]["loss"] == pytest.approx(evaluated(plain, data)["loss"], rel=1e-6)


class Hasty(keras.optimizers.SGD):
    """Ten times the gradient, in the method that Keras's fit calls."""

    def apply_gradients(self, grads_and_vars: Any) -> Any:
        return super().apply_gradients([(gradient * 10.0, variable) for gradient, variable in grads_and_vars])


def two_heads() -> keras.Model:
    """The first output has integers, and the second no loss."""
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(8, "tanh")(inputs)
    logits = keras.layers.Dense(4, name="trained")(hidden)
    place = keras.layers.Lambda(lambda tensor: keras.ops.argmax(tensor, -1), name="best")(logits)
    return keras.Model(
        inputs, {"best": place, "trained": logits, "unused": keras.layers.Dense(3, name="unused")(hidden)}
    )


def probabilities() -> keras.Model:
    layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dense(4, "softmax")]
    return keras.Sequential([keras.Input((6,)), *layers])


HEADS = {"best": None, "trained": CROSS_ENTROPY, "unused": None}


@pytest.mark.filterwarnings("ignore:Gradients do not exist")  # as Keras says of the head without a loss
@pytest.mark.parametrize(
    ("build", "loss", "optimizer"),
    [
        (probabilities, "sparse_categorical_crossentropy", lambda: keras.optimizers.SGD(0.1)),
        (two_heads, HEADS, lambda: keras.optimizers.AdamW(1e-2, weight_decay=0.1)),
        (mlp, CROSS_ENTROPY, lambda: Hasty(0.1)),
    ],
    ids=["softmax", "outputs without a loss", "own apply_gradients"],
)
def test_updates_of_unusual_models(build: Any, loss: Any, optimizer: Any, float64: None) -> None:
    """Keras computes the loss of probabilities from the logits behind them; weights without a gradient stay."""
    x, y = data_of(CASES["mlp"])
    targets = {"best": y, "trained": y, "unused": y} if build is two_heads else y
    ours, plain = pair(build, optimizer=optimizer, loss=loss)
    start = [variable.numpy() for variable in plain.variables]
    run(ours, (x, targets))
    train_in_keras(plain, (x, targets), (x, targets), UPDATES)
    assert distance(ours, plain, start) < 1e-12


def reused() -> keras.Model:
    """One activation in every place."""
    squash = keras.layers.Activation("tanh")
    inputs = x = keras.Input((64,))
    for _ in range(4):
        x = squash(keras.layers.Dense(64)(x))
    return keras.Model(inputs, squash(keras.layers.Dense(4)(x)))


def test_recomputation_of_layers_that_are_called_elsewhere() -> None:
    """In another model before; but not twice in this one."""

    def build() -> keras.Model:
        squash = [keras.layers.Activation("tanh") for _ in range(4)]
        elsewhere = keras.Input((64,))
        for layer in squash:
            elsewhere = layer(elsewhere)
        inputs = x = keras.Input((64,))
        for layer in squash:
            x = layer(keras.layers.Dense(64)(x))
        return keras.Model(inputs, keras.layers.Dense(4)(x))

    ours, stored = pair(build, optimizer=lambda: keras.optimizers.SGD(0.1), loss="mse")
    draw = np.random.default_rng(0)
    data = draw.normal(size=(SIZE, 64)), draw.normal(size=(SIZE, 4))
    run(ours, data, memory="recompute", run_name="recomputed")
    run(stored, data, run_name="stored")
    np.testing.assert_allclose(ours.predict(data[0], verbose=0), stored.predict(data[0], verbose=0), atol=1e-5)
    with pytest.raises(ConfigError, match="can't be cut into segments"):
        run(compiled(reused, loss="mse"), data, memory="recompute", run_name="twice")


def test_lists_of_inputs_and_targets() -> None:
    left, right = keras.Input((6,)), keras.Input((6,))
    hidden = keras.layers.Concatenate()([left, right])
    model = keras.Model([left, right], [keras.layers.Dense(4)(hidden), keras.layers.Dense(1)(hidden)], name="lists")
    model.compile("adam", [CROSS_ENTROPY, "mse"])
    x, y = data_of(CASES["mlp"])
    summary = run(model, ([x, x], [y, x[:, :1]]))
    expected = model.evaluate([x, x], [y, x[:, :1]], batch_size=SIZE, verbose=0, return_dict=True)
    assert summary["test"]["loss"] == pytest.approx(expected["loss"], rel=1e-5)


def test_a_frozen_base_called_without_training_stays_as_it_is() -> None:
    """As the Keras guide to fine-tuning has it: base(x, training=False)."""
    base = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5), keras.layers.BatchNormalization()])
    base.layers[-1].moving_mean.assign([1.0, 2.0, 3.0, 4.0, 5.0])
    base.trainable = False
    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.layers.Dense(4)(base(inputs, training=False)))
    model.compile("adam", CROSS_ENTROPY)
    before = [variable.numpy() for variable in base.variables]
    run(model, data_of(CASES["mlp"]))
    assert all(np.array_equal(a, b.numpy()) for a, b in zip(before, base.variables, strict=True))


def test_moving_statistics_are_those_of_all_micro_batches() -> None:
    def build() -> keras.Model:
        return keras.Sequential(
            [keras.Input((6,)), keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dense(4)]
        )

    ours, plain = pair(build, optimizer=lambda: keras.optimizers.SGD(0.1), loss=CROSS_ENTROPY)
    data = data_of(CASES["mlp"])
    run(ours, data)
    train_in_keras(plain, data, data, UPDATES)
    for a, b in zip(ours.non_trainable_variables, plain.non_trainable_variables, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)


class Net(keras.Model):
    """Without `training` in its call, and not built."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = keras.layers.Dense(8, "relu"), keras.layers.Dense(4)

    def call(self, inputs: Any) -> Any:
        return self.head(self.hidden(inputs))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_of_a_subclass(policy: str) -> None:
    keras.config.set_dtype_policy(policy)
    try:
        scaled = keras.optimizers.LossScaleOptimizer
        optimizers = {
            "mixed_bfloat16": lambda: keras.optimizers.Adam(1e-2),
            "mixed_float16": lambda: scaled(keras.optimizers.Adam(1e-2), initial_scale=64.0),
        }
        ours, plain = pair(Net, optimizer=optimizers[policy], loss=CROSS_ENTROPY)
        data = data_of(CASES["mlp"])
        summary = run(ours, data, run_name=policy)
        train_in_keras(plain, data, data, UPDATES)
    finally:
        keras.config.set_dtype_policy("float32")
    config = (Path("runs") / policy / "config.yaml").read_text()
    assert f"precision: {policy.removeprefix('mixed_')}" in config
    np.testing.assert_allclose(ours.predict(data[0], verbose=0), plain.predict(data[0], verbose=0), atol=0.05)
    assert summary["step"] == UPDATES


# --- metrics ------------------------------------------------------------------------------------------------------


def test_metrics_of_all_kinds_are_those_of_keras() -> None:
    """Means over examples while training too; AUC and weighted ones over the whole split."""
    draw = np.random.default_rng(2)
    x = draw.normal(size=(SIZE, 6))
    data = (x, (x[:, :1] > 0).astype("float32"), draw.uniform(0, 2, SIZE))
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, activation="sigmoid")], name="binary")
    model.compile("adam", "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC()], weighted_metrics=["mae"])
    summary = run(model, data, batch_size=20, steps=1)
    expected = evaluated(model, data)
    assert summary["test"].keys() == expected.keys()
    for name, value in expected.items():
        assert summary["test"][name] == pytest.approx(value, rel=1e-5), name
    assert summary["train"].keys() == {"loss", "accuracy"}


def distance_of_means(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.mean(keras.ops.abs(y_true - y_pred))


def test_a_metric_of_a_whole_batch_is_measured_in_evaluations() -> None:
    x = np.random.default_rng(3).normal(size=(SIZE, 6))
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)], name="scalar")
    model.compile("adam", "mse", metrics=[distance_of_means])
    summary = run(model, (x, x[:, :1]))
    assert summary["train"].keys() == {"loss"}
    assert summary["test"].keys() == {"loss", "distance_of_means"}


def test_without_accuracy_the_lowest_loss_is_the_best() -> None:
    x = np.random.default_rng(3).normal(size=(SIZE, 6))
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)], name="regression")
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    summary = run(model, (x, x[:, :1]), updates=6, settings={"eval.every": 2})
    tested = [json.loads(line) for line in Path("runs/regression/metrics.jsonl").read_text().splitlines()]
    losses = [each["loss"] for each in tested if each["split"] == "test"]
    assert len(losses) == 3
    assert summary["best"] == {"loss": pytest.approx(min(losses))}
    assert (Path("runs/regression") / "results.png").exists()


# --- continued runs -----------------------------------------------------------------------------------------------


def with_dropout() -> keras.Model:
    layers = [keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.5), keras.layers.BatchNormalization()]
    return keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(4)], name="net")


def test_a_continued_run_has_the_same_bits() -> None:
    whole, begun = pair(with_dropout, optimizer=OPTIMIZERS["adamw"], loss=CROSS_ENTROPY)
    _, continued = pair(with_dropout, optimizer=OPTIMIZERS["adamw"], loss=CROSS_ENTROPY)
    data = data_of(CASES["mlp"])
    run(whole, data, updates=6, run_name="whole")
    begun.name, continued.name = "begun", "continued"  # as names are in a notebook
    run(begun, data, updates=3, run_name="parts")
    run(continued, data, updates=6, run_name="parts")
    same = zip(
        [*whole.variables, *whole.optimizer.variables],
        [*continued.variables, *continued.optimizer.variables],
        strict=True,
    )
    assert [a.path for a, b in same if a.name != "seed_generator_state" and not np.array_equal(a, b)] == []


def test_a_run_that_is_stopped_is_saved() -> None:
    model, again = pair(with_dropout, optimizer=OPTIMIZERS["adam"], loss=CROSS_ENTROPY)
    data = data_of(CASES["mlp"])
    with pytest.raises(Preempted, match="its state is saved in runs/net"):
        run(model, data, settings={"run.walltime": "0:00:01"})
    assert run(again, data)["step"] == UPDATES


def test_another_model_optimizer_or_data_does_not_continue_the_run() -> None:
    model, _ = pair(mlp, optimizer=OPTIMIZERS["adam"], loss=CROSS_ENTROPY)
    data = data_of(CASES["mlp"])
    run(model, data, run_name="mine")
    model.optimizer.learning_rate = 0.5
    with pytest.raises(ConfigError, match=r"learns something else: optim.args"):
        run(model, data, run_name="mine")
    model.optimizer.learning_rate = 1e-2
    with pytest.raises(DataError, match=r"data.train.arrays"):
        run(model, (data[0] + 1, data[1]), run_name="mine")


# --- verify -------------------------------------------------------------------------------------------------------


def test_verify_checks_and_leaves_the_model_as_it_is() -> None:
    case = CASES["cnn"]
    model, _ = pair(case.build, optimizer=OPTIMIZERS["adam"], loss=case.losses)
    before = [variable.numpy() for variable in model.variables]
    result = run(model, data_of(case), job="verify")
    assert result["passed"]
    assert all(np.array_equal(a, b.numpy()) for a, b in zip(before, model.variables, strict=True))
    assert int(model.optimizer.iterations.numpy()) == 0


# --- data ---------------------------------------------------------------------------------------------------------


class Numbers(accumtrain.Split):
    """Example i is the number i; its target is i % 4."""

    size, image_shape, channels = 64, None, 1

    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.cast(index[:, None], tf.float32) / 64.0, tf.cast(index % 4, tf.int32)


def test_data_sets_and_splits() -> None:
    x, y = data_of(CASES["mlp"])
    dataset = tf.data.Dataset.from_tensor_slices((x.astype("float32"), y))
    results = []
    for data in ((x, y), dataset, dataset.batch(10), dataset.batch(32, drop_remainder=True)):
        model, _ = pair(mlp, optimizer=OPTIMIZERS["adam"], loss=CROSS_ENTROPY)
        accumtrain.fit(model, data, batch_size=48, run_name=f"data-{len(results)}")
        results.append([variable.numpy() for variable in model.variables])
    for each in results[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(results[0], each, strict=True))
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(4)], name="numbers")
    model.compile("adam", CROSS_ENTROPY)
    assert run(model, Numbers(), batch_size=16)["test"]["loss"] > 0


def test_several_inputs() -> None:
    left, right = keras.Input((6,), name="left"), keras.Input((7,), dtype="int32", name="right")
    embedded = keras.layers.Flatten()(keras.layers.Embedding(20, 3)(right))
    model = keras.Model(
        {"left": left, "right": right}, keras.layers.Dense(4)(keras.layers.Concatenate()([left, embedded]))
    )
    model.compile("adam", CROSS_ENTROPY)
    draw = np.random.default_rng(0)
    x = {"left": vectors(draw, SIZE), "right": draw.integers(0, 20, (SIZE, 7))}
    assert run(model, (x, draw.integers(0, 4, SIZE)), run_name="two")["step"] == UPDATES


# --- refusals -----------------------------------------------------------------------------------------------------


def compiled(build: Callable[[], keras.Model] = mlp, **arguments: Any) -> keras.Model:
    model = build()
    model.compile(**{"optimizer": "adam", "loss": CROSS_ENTROPY, **arguments})
    return model


class OwnStep(Net):
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


def shared_norm() -> keras.Model:
    inputs, norm = keras.Input((6,)), keras.layers.BatchNormalization()
    return keras.Model(inputs, keras.layers.Dense(4)(norm(keras.layers.Dense(6)(norm(inputs)))))


class Assigning(keras.layers.Dense):
    def call(self, inputs: Any, training: bool | None = None) -> Any:
        self.bias.assign(self.bias + 1.0)
        return super().call(inputs)


class Halved(keras.Sequential):
    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        return 0.5 * super().call(inputs, training=training)


def halved() -> keras.Model:
    return Halved([keras.Input((6,)), keras.layers.Dense(8), keras.layers.Dense(4)])


class Drop(keras.layers.Layer):
    def __init__(self, generator: keras.random.SeedGenerator) -> None:
        super().__init__()
        self.generator = generator

    def call(self, inputs: Any) -> Any:
        return keras.random.dropout(inputs, 0.5, seed=self.generator)


def drawing() -> keras.Model:
    """Several dropouts of one generator."""
    generator = keras.random.SeedGenerator(1)
    layers = [each for _ in range(5) for each in (keras.layers.Dense(64), Drop(generator))]
    return keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(4)])


def masked() -> keras.Model:
    layers = [keras.layers.Embedding(20, 8, mask_zero=True), keras.layers.LSTM(8, return_sequences=True)]
    return keras.Sequential([keras.Input((7,), dtype="int32"), *layers, keras.layers.Dense(4)])


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        (mlp, {}, "is not compiled: call model.compile"),
        (lambda: "resnet50", {}, "model is a str: give a keras.Model"),
        (lambda: compiled(OwnStep), {}, "has a train_step of its own"),
        (lambda: compiled(loss=None), {}, "is compiled without a loss"),
        (lambda: compiled(optimizer=Accumulate("adam", 4)), {}, "accumulates by itself"),
        (lambda: compiled(optimizer=keras.optimizers.Adam(gradient_accumulation_steps=2)), {}, "accumulates by itself"),
        (
            lambda: compiled(loss=keras.losses.SparseCategoricalCrossentropy(reduction="sum")),
            {},
            "reduction='sum', so that of a batch is no mean",
        ),
        (lambda: compiled(shared_norm), {}, "calls its batch normalisation batch_normalization.* twice"),
        (
            lambda: compiled(lambda: keras.Sequential([keras.Input((6,)), Assigning(4)])),
            {},
            "assigns its weight .*bias in a forward pass",
        ),
        (lambda: compiled(halved), {"memory": "recompute"}, "has no cut points"),
        (lambda: compiled(drawing), {"memory": "recompute"}, "draws from one seed generator"),
        (lambda: compiled(optimizer=keras.optimizers.SGD(loss_scale_factor=8.0)), {}, "loss_scale_factor=8.0"),
        (lambda: compiled(metrics=[keras.metrics.SparseCategoricalAccuracy(name="step")]), {}, "named step"),
        (lambda: compiled(metrics=[keras.metrics.F1Score()], loss="mse"), {"targets": 4}, "no single number"),
        (compiled, {"job": "bench"}, "job='bench': choose from train, plan, verify"),
        (compiled, {"memory": "reverse"}, "is not reversible"),
        (compiled, {"steps": 5}, "batch_size=32 does not divide by accum.steps=5 x 1 replica; nearest: 30, 35"),
        (compiled, {"steps": 0}, "accum.steps=0"),
        (compiled, {"batch_size": -1}, "batch_size=-1"),
        (compiled, {"batch_size": "64"}, "batch_size='?64'?: must be a whole number"),
        (compiled, {"epochs": 0}, "train.epochs=0"),
        (compiled, {"memory_limit_mb": 0}, "device.memory_limit_mb=0"),
        (compiled, {"run_name": "a/b"}, "run.name=a/b"),
        (compiled, {"settings": {"optim.lr": 1}}, "the compiled model or an argument of fit decides it"),
        (compiled, {"settings": {"batch_size": 1}}, "the compiled model or an argument of fit decides it"),
        (compiled, {"settings": {"train.step": 1}}, "train.step: no such key"),
        (compiled, {"settings": {"run.on_nonfinite": "rollback"}}, "choose skip"),
        (compiled, {"validation_data": None, "validation_split": 1}, "validation_split=1: must be above 0 and below 1"),
    ],
)  # fmt: skip
def test_what_is_refused(model: Callable[[], Any], arguments: dict[str, Any], message: str) -> None:
    x, y = data_of(CASES["mlp"])
    if columns := arguments.pop("targets", None):
        y = np.eye(columns)[y]
    with pytest.raises(AccumtrainError, match=message):
        run(model(), (x, y), **arguments)


def test_a_masked_loss_is_refused() -> None:
    draw = np.random.default_rng(0)
    with pytest.raises(ConfigError, match="have masks"):
        run(compiled(masked), (draw.integers(0, 20, (SIZE, 7)), draw.integers(0, 4, (SIZE, 7))))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "data is a NoneType"),
        ((np.zeros((4, 6)),), "data is a tuple: give"),
        ((np.zeros((4, 6)), np.zeros(3, int)), "the arrays hold 3, 4 examples"),
        ((np.zeros((0, 6)), np.zeros(0, int)), "empty"),
        ((np.zeros((4, 6)), 1), "an array .* is expected"),
        ((np.array([None, 1]), np.zeros(2, int)), "an array .* is expected"),
        (tf.data.Dataset.from_tensors((np.zeros(6), 1)).repeat(), "has no end"),
        (tf.data.Dataset.from_tensors((np.zeros(6), 1)).take(0), "is empty"),
        (Numbers(), "validation_data is missing"),
        (tf.data.Dataset.from_generator(lambda: iter(()), output_types=(tf.float32, tf.int32)), "unknown rank"),
    ],
)  # fmt: skip
def test_data_that_is_refused(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        accumtrain.fit(compiled(), data)
