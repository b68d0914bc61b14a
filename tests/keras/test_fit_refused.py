"""accumtrain.fit: what it refuses, and what the message says."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import accumtrain
from accumtrain.config.compiled import KIND, OR_SAY
from accumtrain.config.read import from_mapping
from accumtrain.config.registries import REGISTRIES
from accumtrain.errors import AccumtrainError, ConfigError, DataError
from accumtrain.keras import accumulate
from tests.keras.cases import CASES, SIZE, AddLoss, Numbers, compiled, data_of, mlp, run

pytestmark = pytest.mark.usefixtures("empty_folder")


class OwnStep(keras.Sequential):
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


def shared_norm() -> keras.Model:
    inputs, norm = keras.Input((6,)), keras.layers.BatchNormalization()
    return keras.Model(inputs, keras.layers.Dense(4)(norm(keras.layers.Dense(6)(norm(inputs)))))


def compiled_row(*layers: keras.layers.Layer, kind: type = keras.Sequential) -> keras.Model:
    return compiled(lambda: kind([keras.Input((6,)), *layers, keras.layers.Dense(4)]))


class Assigning(keras.layers.Dense):
    def call(self, inputs: Any, training: bool | None = None) -> Any:
        self.bias.assign(self.bias + 1.0)
        return super().call(inputs)


class Halved(keras.Sequential):
    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        return 0.5 * super().call(inputs, training=training)


class Drop(keras.layers.Layer):
    def __init__(self, generator: keras.random.SeedGenerator) -> None:
        super().__init__()
        self.generator = generator

    def call(self, inputs: Any) -> Any:
        return keras.random.dropout(inputs, 0.5, seed=self.generator)


def drawing() -> keras.Model:
    """Several dropouts of one generator."""
    generator = keras.random.SeedGenerator(1)
    return compiled_row(*(each for _ in range(5) for each in (keras.layers.Dense(64), Drop(generator))))


def frozen() -> keras.Model:
    model = compiled()
    model.trainable = False
    return model


def sum_of_squares(z: Any, _: Any) -> Any:
    return keras.ops.sum(z * z)


def norm(z: Any, _: Any) -> Any:
    return keras.ops.sqrt(sum_of_squares(z, _))


IGNORING = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
SUM = keras.losses.SparseCategoricalCrossentropy(reduction="sum")
ACCUMULATING = keras.optimizers.Adam(gradient_accumulation_steps=2)


FROZEN = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])


def runs_layers(y: Any, p: Any) -> Any:
    return keras.ops.mean(FROZEN(p) ** 2)


def masked() -> keras.Model:
    layers = [keras.layers.Embedding(20, 8, mask_zero=True), keras.layers.LSTM(8, return_sequences=True)]
    return keras.Sequential([keras.Input((7,), dtype="int32"), *layers, keras.layers.Dense(4)])


class DrawsAlways(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return x + tf.random.normal(tf.shape(x), dtype=x.dtype)


def one_number(y: Any, p: Any) -> Any:
    return keras.ops.sqrt(keras.ops.mean((y - p) ** 2))


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        (mlp, {}, "is not compiled: call model.compile"),
        (lambda: "resnet50", {}, "model is a str: give a keras.Model"),
        (lambda: compiled(lambda: OwnStep([keras.layers.Dense(4)])), {}, "has a train_step of its own"),
        (lambda: accumulate(compiled(), 4), {}, "given to accumulate: leave that out, and give fit the same steps"),
        (frozen, {}, "all weights of .* are frozen: set trainable=True"),
        (lambda: compiled(loss=IGNORING), {}, "leaves some targets out, as ignore_class does"),
        (lambda: compiled_row(AddLoss(norm)), {}, 'adds a loss of your own.*say layer_losses="mean"'),
        (lambda: compiled_row(AddLoss(norm)), {"loss": "batch"}, "adds a loss of your own"),
        (lambda: compiled_row(AddLoss(sum_of_squares)), {"layer_losses": "sum"}, "adds a loss that is a sum over the"),
        (lambda: compiled(loss=one_number), {"loss": "sum", "targets": 4}, 'loss="sum": a run has means over'),
        (compiled, {"loss": "often"}, 'loss=.?often.?: say "mean"'),
        (lambda: compiled(loss=runs_layers), {}, 'runs layers, such as .*: say loss="mean"'),
        (lambda: compiled_row(DrawsAlways()), {"loss": "batch"}, f"draws random numbers by RandomStandard.*{OR_SAY}$"),
        (lambda: compiled(loss=None), {}, "is compiled without a loss"),
        (lambda: compiled(loss=SUM), {}, "reduction='sum', so that of a batch is not a mean"),
        (lambda: compiled(optimizer=keras.optimizers.LossScaleOptimizer(ACCUMULATING)), {}, "accumulates by itself"),
        (lambda: compiled_row(keras.layers.BatchNormalization(renorm=True)), {}, "renorm=True"),
        (lambda: compiled(loss={"other": "mse"}), {}, "does not take the data"),
        (lambda: compiled(shared_norm), {}, "calls its batch normalisation batch_normalization.* twice"),
        (lambda: compiled_row(Assigning(4)), {}, "assigns its weight .*bias during its call"),
        (lambda: compiled_row(keras.layers.Dense(8), kind=Halved), {"memory": "recompute"}, "has no cut points"),
        (drawing, {"memory": "recompute"}, "draws from one seed generator"),
        (lambda: compiled(optimizer=keras.optimizers.SGD(loss_scale_factor=8.0)), {}, "loss_scale_factor=8.0"),
        (lambda: compiled(metrics=[keras.metrics.SparseCategoricalAccuracy(name="step")]), {}, "named step"),
        (lambda: compiled(metrics=[keras.metrics.F1Score()], loss="mse"), {"targets": 4}, "not a single number"),
        (lambda: compiled(metrics=[one_number], loss="mse"), {"targets": 4}, "the metric one_number gives one number"),
        (compiled, {"job": "bench"}, "job='bench': choose from train, plan, verify"),
        (compiled, {"memory": "reverse"}, "is not reversible"),
        (compiled, {"steps": 5}, "batch_size=32 is not divisible by accum.steps=5 x 1 replica; nearest: 30, 35"),
        (compiled, {"steps": 0}, "accum.steps=0"),
        (compiled, {"batch_size": -1}, "batch_size=-1"),
        (compiled, {"batch_size": "64"}, "batch_size='?64'?: must be a whole number"),
        (compiled, {"epochs": 0}, "train.epochs=0"),
        (compiled, {"memory_limit_mb": 0, "steps": "auto"}, "device.memory_limit_mb=0"),
        (compiled, {"memory_limit_mb": 500, "steps": 4}, "the limit is what steps='auto' plans with"),
        (compiled, {"run_name": "a/b"}, "run.name=a/b"),
        (compiled, {"settings": {"optim.lr": 1}}, "the compiled model or an argument of fit decides it"),
        (compiled, {"settings": {"batch_size": 1}}, "the compiled model or an argument of fit decides it"),
        (compiled, {"settings": {"batch_size.x": 1}}, "batch_size has one value and no keys"),
        (compiled, {"settings": {"train.step": 1}}, "train.step: no such key"),
        (compiled, {"settings": {"ema.decay": 0.9}}, "compile the model with an optimizer that has use_ema=True"),
        (compiled, {"settings": {1: 2}}, "settings must map dotted names to values"),
        (compiled, {"settings": {"run.on_nonfinite": "rollback"}}, "choose skip"),
        (compiled, {"validation_data": None, "validation_split": 1}, "validation_split=1: must be above 0 and below 1"),
        (compiled, {"validation_data": None, "validation_split": "a"}, "validation_split=a: must be above 0"),
        (compiled, {"seed": 1.5}, "run.seed=1.5: must be a whole number"),
        (compiled, {"class_weight": [1.0, 2.0]}, "must map the numbers of classes to weights of at least 0"),
        (compiled, {"class_weight": {0: -1.0}}, "must map the numbers of classes to weights of at least 0"),
    ],
)  # fmt: skip
def test_what_is_refused(model: Callable[[], Any], arguments: dict[str, Any], message: str) -> None:
    x, y = data_of(CASES["mlp"])
    if columns := arguments.get("targets"):
        y = np.eye(columns)[y]
    with pytest.raises(AccumtrainError, match=f"(?s){message}"):
        run(model(), (x, y), **{name: value for name, value in arguments.items() if name != "targets"})


def test_the_old_word_is_answered() -> None:
    with pytest.raises(TypeError, match='fit has no argument whole_batch any more: say loss="batch"'):
        run(compiled(), data_of(CASES["mlp"]), whole_batch=True)


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
        ((np.zeros((4, 6)), np.array(list("abcd"))), "the targets are text: number them"),
        ((np.array(["ab", "cd"]), np.zeros(2, int)), "the inputs are text, and .* takes numbers"),
        ((np.zeros((4, 5)), np.zeros(4, int)), "does not take the data: .* expected axis -1 of input shape to have"),
        ((np.zeros((4, 6)), np.zeros((4, 3))), "does not take the data"),
        ((np.zeros((4, 6)), np.zeros(4, int), np.ones((4, 2))), "does not take the data"),
        (({"a": np.zeros((4, 6))}, np.zeros(4, int)), "does not take the data: .*structure"),
        ((np.zeros((4, 6)), np.array([0, 1, 2, 9])), "does not take a value of the data: .*label value of 9"),
        (Numbers(), "validation_data is missing"),
        (tf.data.Dataset.from_generator(lambda: iter(()), output_types=(tf.float32, tf.int32)), "unknown rank"),
    ],
)  # fmt: skip
def test_data_that_is_refused(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"(?s){message}"):
        accumtrain.fit(compiled(), data, batch_size=2)


def test_validation_data_of_another_shape_is_refused() -> None:
    data = data_of(CASES["mlp"])
    with pytest.raises(DataError, match=r"have shapes \(\[6\], \[\]\), in validation_data \(\[5\], \[\]\)"):
        run(compiled(), data, validation_data=(data[0][:, :5], data[1]))


def test_its_kinds_are_chosen_by_fit_alone() -> None:
    assert all(KIND not in table.names for table in REGISTRIES.values())
    config = from_mapping({"task": {"kind": KIND}, "data": {"kind": KIND}, "run": {"name": "alone"}})
    with pytest.raises(ConfigError, match=r"kind=compiled: stands for the model that accumtrain\.fit is given"):
        accumtrain.run(config)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda x, y: (x, y, np.ones(len(x))), "data has sample_weight, too; multiply it by these weights"),
        (lambda x, y: (x, np.zeros([len(x), 2, 2])), "it is for one output with targets"),
        (lambda x, y: tf.data.Dataset.from_tensor_slices((x, y)).batch(8), "arrays, and data is the tf.data.Dataset"),
    ],
)
def test_weights_of_classes_are_for_arrays_of_classes(data: Callable[..., Any], message: str) -> None:
    x, y = data_of(CASES["mlp"])
    with pytest.raises(ConfigError, match=f"class_weight={{0: 2.0}}: .*{message}"):
        accumtrain.fit(compiled(), data(x, y), validation_data=(x, y), class_weight={0: 2.0})
