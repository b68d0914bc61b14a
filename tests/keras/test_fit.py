"""accumtrain.fit: the updates and metrics of plain Keras with the whole batch."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from accumtrain import fit
from accumtrain.data.pipeline import make_train_batches
from accumtrain.errors import OutOfMemoryError
from accumtrain.keras.run.examples import take_data
from tests.keras import cases
from tests.keras.cases import CASES, CROSS_ENTROPY, OPTIMIZERS, SIZE, UPDATES, compiled, data_of, pair, run
from tests.keras.gradients import unchanged
from tests.keras.whole_batch_losses import Contrast, hard_triplet, supcon

pytestmark = pytest.mark.usefixtures("empty_folder")


def train_in_keras(model: keras.Model, data: Any) -> None:
    """Make the updates of `fit` by a GradientTape, with the whole batches."""
    given = take_data(model, data, data, 0.5)
    stream = iter(make_train_batches(given, batch=cases.EXAMPLES, first=0, seed=0))
    for _ in range(UPDATES):
        batch = next(stream)
        y, *weight = batch["targets"]
        with tf.GradientTape() as tape:
            y_pred = model(batch["inputs"], training=True)
            loss = model.compute_loss(batch["inputs"], y, y_pred, *weight)
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


def compare_updates(models: tuple[keras.Model, keras.Model], data: Any, bound: float, **arguments: Any) -> Any:
    """Train the first by `fit` and the second by Keras. Return the summary of the first."""
    ours, plain = models
    start = [variable.numpy() for variable in plain.variables]
    summary = run(ours, data, **arguments)
    train_in_keras(plain, data)
    assert distance(ours, plain, start) < bound
    return summary


def evaluated(model: keras.Model, data: Any) -> dict[str, float]:
    """Return what Keras measures on (x, y, sample_weight)."""
    x, y, weight = data
    return model.evaluate(x, y, sample_weight=weight, batch_size=SIZE, verbose=0, return_dict=True)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("mlp", "adamw"),
        ("two_outputs", "adam"),
        pytest.param("lstm", "adamw", marks=pytest.mark.slow),
        pytest.param("mobilenet", "adamw", marks=pytest.mark.slow),
    ],
)
def test_updates_are_those_of_the_whole_batch(name: str, optimizer: str, float64: None) -> None:
    """With its schedule, average, decay and clipping, and through frozen batch normalisation."""
    case = CASES[name]
    models = pair(case.build, optimizer=OPTIMIZERS[optimizer], loss=case.losses, loss_weights=case.loss_weights)
    compare_updates(models, data_of(case), 1e-12)
    assert int(models[0].optimizer.iterations.numpy()) == UPDATES


@pytest.mark.slow
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
    models = pair(build, optimizer=lambda: keras.optimizers.SGD(0.1), loss=CROSS_ENTROPY)
    summary = compare_updates(models, data, 1e-12, memory=memory)
    assert summary["val"]["loss"] == pytest.approx(evaluated(models[1], data)["loss"], rel=1e-6)


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("arguments", [{"steps": 1}, {"steps": 4}, {"steps": 4, "loss": "batch"}])
def test_classes_are_weighed_as_in_model_fit(arguments: dict[str, Any], one_hot: bool, float64: None) -> None:
    """All examples are in each update, so that the order is no matter. Evaluations are not weighted."""
    x, y = data_of(CASES["mlp"])
    kind = keras.losses.CategoricalCrossentropy if one_hot else keras.losses.SparseCategoricalCrossentropy
    loss = kind(from_logits=True)  # made here, as its dtype is that of the moment
    y = np.eye(int(y.max()) + 1)[y] if one_hot else y
    ours, plain = pair(CASES["mlp"].build, optimizer=lambda: keras.optimizers.SGD(0.1), loss=loss)
    start = [variable.numpy() for variable in plain.variables]
    weights = {0: 3.0, 2: 0.25, 99: 7.0}
    summary = fit(
        ours, (x, y), validation_data=(x, y), batch_size=SIZE, epochs=UPDATES, class_weight=weights, **arguments
    )
    plain.fit(x, y, batch_size=SIZE, epochs=UPDATES, shuffle=False, class_weight=weights, verbose=0)
    assert distance(ours, plain, start) < 1e-12
    assert summary["val"]["loss"] == pytest.approx(plain.evaluate(x, y, verbose=0), rel=1e-6)


@pytest.mark.slow
def test_memory_in_megabytes_keeps_what_fits() -> None:
    data = data_of(CASES["cnn"])
    run(compiled(CASES["cnn"].build), data, memory=2000, run_name="budget")
    (found,) = Path("runs").rglob("memory_budget.json")
    assert json.loads(found.read_text())["model"]["memory"] == "store"
    with pytest.raises(
        OutOfMemoryError, match=r"model.memory=1: micro-batches of .* need at least .* MB; model.memory=[0-9]+ works"
    ):
        run(compiled(CASES["cnn"].build), data, memory=1, run_name="too_small")


@pytest.mark.parametrize(
    "loss", [Contrast(), *(pytest.param(loss, marks=pytest.mark.slow) for loss in (supcon, hard_triplet))]
)
def test_losses_of_the_whole_batch(loss: Any, float64: None) -> None:
    """With losses of layers and weights; the 96 examples that are evaluated make three batches of the update's size."""

    def build() -> keras.Model:
        regular = keras.layers.Dense(8, "tanh", kernel_regularizer="l2", activity_regularizer="l1")
        return keras.Sequential([keras.Input((6,)), regular, keras.layers.Dense(4)])

    data = (*data_of(CASES["mlp"]), np.random.default_rng(1).uniform(0.1, 2, SIZE))
    given = data if isinstance(loss, Contrast) else data[:2]
    models = pair(build, optimizer=lambda: keras.optimizers.SGD(0.1), loss=loss)
    summary = compare_updates(models, given, 1e-12)
    x, y, weight = data
    parts = [slice(place, place + cases.EXAMPLES) for place in range(0, SIZE, cases.EXAMPLES)]
    of_parts = [
        models[1].evaluate(x[p], y[p], sample_weight=weight[p] if len(given) == 3 else None, batch_size=SIZE, verbose=0)
        for p in parts
    ]
    assert summary["val"]["loss"] == pytest.approx(np.mean(of_parts), rel=1e-6)


def test_a_loss_of_the_whole_batch_that_reads_a_weight(float64: None) -> None:
    models = pair(cases.mlp, optimizer=lambda: keras.optimizers.SGD(0.1), loss="mse")
    for model in models:
        kernel = model.layers[0].kernel
        model.compile(keras.optimizers.SGD(0.1), lambda y, z, k=kernel: supcon(y, z) + keras.ops.sum(k * k * k))
    compare_updates(models, data_of(CASES["mlp"]), 1e-12)


def two_heads() -> keras.Model:
    """The first output has integers, and the second no loss."""
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(8, "tanh")(inputs)
    logits = keras.layers.Dense(4, name="trained")(hidden)
    place = keras.layers.Lambda(lambda tensor: keras.ops.argmax(tensor, -1), name="best")(logits)
    unused = keras.layers.Dense(3, name="unused")(hidden)
    return keras.Model(inputs, {"best": place, "trained": logits, "unused": unused})


def probabilities() -> keras.Model:
    layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dense(4, "softmax")]
    return keras.Sequential([keras.Input((6,)), *layers])


HEADS = {"best": None, "trained": CROSS_ENTROPY, "unused": None}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Gradients do not exist")  # as Keras says of the head without a loss
@pytest.mark.parametrize(
    ("build", "loss", "optimizer"),
    [
        (probabilities, "sparse_categorical_crossentropy", lambda: keras.optimizers.SGD(0.1)),
        (two_heads, HEADS, lambda: keras.optimizers.AdamW(1e-2, weight_decay=0.1)),
        (cases.mlp, CROSS_ENTROPY, lambda: cases.Hasty(0.1)),
    ],
    ids=["softmax", "outputs without a loss", "own apply_gradients"],
)
def test_updates_of_unusual_models(build: Any, loss: Any, optimizer: Any, float64: None) -> None:
    """Keras computes the loss of probabilities from the logits behind them; weights without a gradient stay."""
    x, y = data_of(CASES["mlp"])
    targets = {"best": y, "trained": y, "unused": y} if build is two_heads else y
    compare_updates(pair(build, optimizer=optimizer, loss=loss), (x, targets), 1e-12)


@pytest.mark.slow
def test_a_loss_of_the_whole_batch_finds_the_logits_behind_probabilities(float64: None) -> None:
    """Where the probabilities are 0, whose logarithm Keras clips."""
    x, y = data_of(CASES["mlp"])
    models = pair(
        lambda: keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "softmax")]),
        optimizer=lambda: keras.optimizers.SGD(0.1),
        loss=lambda y, p: keras.losses.sparse_categorical_crossentropy(keras.ops.reshape(y, (-1,)), p),
    )
    compare_updates(models, (100.0 * x, y), 1e-12)


@pytest.mark.slow
def test_recomputation_of_layers_that_are_called_elsewhere() -> None:
    """In another model before; layers that are called twice in this one are refused (test_small_models.py)."""

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


def test_inputs_by_name_and_a_list_of_targets() -> None:
    left, right = keras.Input((6,), name="left"), keras.Input((7,), dtype="int32", name="right")
    embedded = keras.layers.Flatten()(keras.layers.Embedding(20, 3)(right))
    hidden = keras.layers.Concatenate()([left, embedded])
    outputs = [keras.layers.Dense(4)(hidden), keras.layers.Dense(1)(hidden)]
    model = keras.Model({"left": left, "right": right}, outputs, name="several")
    model.compile("adam", [CROSS_ENTROPY, "mse"])
    vectors, y = data_of(CASES["mlp"])
    data = {"left": vectors, "right": data_of(CASES["lstm"])[0]}, [y, vectors[:, :1]]
    summary = run(model, data)
    expected = model.evaluate(*data, batch_size=SIZE, verbose=0, return_dict=True)
    assert summary["val"]["loss"] == pytest.approx(expected["loss"], rel=1e-5)


def test_a_frozen_base_called_without_training_stays_as_it_is() -> None:
    """As the Keras guide to fine-tuning has it: base(x, training=False)."""
    base = keras.Sequential([keras.Input((6,)), keras.layers.Dense(5), keras.layers.BatchNormalization()])
    base.layers[-1].moving_mean.assign([1.0, 2.0, 3.0, 4.0, 5.0])
    base.trainable = False
    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.layers.Dense(4)(base(inputs, training=False)))
    model.compile("adam", CROSS_ENTROPY)
    with unchanged(base.variables):
        run(model, data_of(CASES["mlp"]))


@pytest.mark.slow
def test_a_limit_of_the_users_own_starts_no_probe(monkeypatch) -> None:
    """It holds in this process; a child could not make the model, which was not written."""
    monkeypatch.setenv("TF_CPU_BFC_MEM_LIMIT_IN_MB", "100000")
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    model = compiled()
    assert run(model, data_of(CASES["mlp"]), run_name="limited")["status"] == "completed"


@pytest.mark.slow
def test_numbers_and_paths_of_other_libraries(tmp_path: Path) -> None:
    def build(number: Callable[[float], Any]) -> keras.Model:
        keras.utils.set_random_seed(1)
        model = cases.mlp()
        schedule = keras.optimizers.schedules.ExponentialDecay(number(0.01), 2, number(0.9))
        model.compile(keras.optimizers.AdamW(schedule, weight_decay=number(0.1)), CROSS_ENTROPY)
        return model

    def given(whole: Any, share: Any) -> dict[str, Any]:
        numbers = {"batch_size": whole(32), "steps": whole(2), "epochs": share(1.0), "seed": whole(3)}
        return {**numbers, "settings": {"checkpoint.every": whole(3)}}

    ours, plain = build(np.float64), build(float)
    run(ours, data_of(CASES["mlp"]), run_name="numpy", run_dir=tmp_path / "path", **given(np.int64, np.float32))
    run(plain, data_of(CASES["mlp"]), run_name="python", **given(int, float))
    assert (tmp_path / "path" / "numpy" / "summary.json").exists()
    for a, b in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)  # Keras computes the rate of NumPy's numbers in float64


def test_moving_statistics_are_those_of_all_micro_batches() -> None:
    def build() -> keras.Model:
        norm = keras.layers.BatchNormalization(momentum=0.5)
        return keras.Sequential([keras.Input((6,)), norm, keras.layers.Dense(4)])

    ours, plain = pair(build, optimizer=lambda: keras.optimizers.SGD(0.1), loss=CROSS_ENTROPY)
    data = data_of(CASES["mlp"])
    run(ours, data)
    train_in_keras(plain, data)
    for a, b in zip(ours.non_trainable_variables, plain.non_trainable_variables, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)


class Net(keras.Model):
    """Without `training` in its call, and not built."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = keras.layers.Dense(8, "relu"), keras.layers.Dense(4)

    def call(self, inputs: Any) -> Any:
        return self.head(self.hidden(inputs))


@pytest.mark.parametrize("name", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_of_a_subclass(name: str, policy: Callable[[str], None]) -> None:
    def optimizer() -> keras.optimizers.Optimizer:
        adam = keras.optimizers.Adam(1e-2)
        return keras.optimizers.LossScaleOptimizer(adam, initial_scale=64.0) if name == "mixed_float16" else adam

    policy(name)
    models, data = pair(Net, optimizer=optimizer, loss=CROSS_ENTROPY), data_of(CASES["mlp"])
    for model in models:
        model(data[0][:1])
    assert compare_updates(models, data, 0.02, run_name=name)["step"] == UPDATES
    config = (Path("runs") / name / "config.yaml").read_text()
    assert f"precision: {name.removeprefix('mixed_')}" in config


def test_metrics_of_all_kinds_are_those_of_keras() -> None:
    """Means over examples while training too; AUC and weighted ones over the whole split."""
    draw = np.random.default_rng(2)
    x = draw.normal(size=(SIZE, 6))
    data = (x, (x[:, :1] > 0).astype("float32"), draw.uniform(0, 2, SIZE))
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, activation="sigmoid")], name="binary")
    model.compile("adam", "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC()], weighted_metrics=["mae"])
    summary = run(model, data, batch_size=20, steps=1)
    expected = evaluated(model, data)
    assert summary["val"].keys() == expected.keys()
    for name, value in expected.items():
        assert summary["val"][name] == pytest.approx(value, rel=1e-5), name
    assert summary["train"].keys() == {"loss", "accuracy"}


def test_the_end_says_which_state_the_model_has(capsys: pytest.CaptureFixture[str]) -> None:
    """It is the last one, and docs/keras.md shows how to get the best."""
    x = np.random.default_rng(3).normal(size=(SIZE, 6))
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)], name="worse")
    model.compile(keras.optimizers.SGD(5.0), "mse")  # it diverges, so the first evaluation is the best
    summary = run(model, (x, x[:, :1]), updates=4, settings={"eval.every": 2})
    assert (summary["best_step"], summary["step"]) == (2, 4)
    told = capsys.readouterr().out
    assert "the model is left in the last state, unless a callback sets its weights; docs/keras.md shows how" in told
    assert "state=last" not in told
    last = tf.train.load_checkpoint("runs/worse/checkpoints/step-4/state")
    kernel = last.get_tensor("model/weights/0/.ATTRIBUTES/VARIABLE_VALUE")
    np.testing.assert_array_equal(model.layers[0].kernel.numpy(), kernel)


def test_without_accuracy_the_lowest_loss_is_the_best() -> None:
    x = np.random.default_rng(3).normal(size=(SIZE, 6))
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)], name="regression")
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    summary = run(model, (x, x[:, :1]), updates=6, settings={"eval.every": 2})
    tested = [json.loads(line) for line in Path("runs/regression/metrics.jsonl").read_text().splitlines()]
    losses = [each["loss"] for each in tested if each["split"] == "val"]
    assert len(losses) == 3
    assert summary["best"] == {"loss": pytest.approx(min(losses))}
    assert (Path("runs/regression") / "results.png").exists()
