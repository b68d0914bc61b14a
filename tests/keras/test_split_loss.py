"""Losses that are the user's own: whole without a word, and by micro-batches where one is said. And those of layers."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from accumtrain.keras import accumulate
from accumtrain.keras.known import Join, join_of_layer
from tests.keras.cases import AddLoss
from tests.keras.programs import run_python

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(20, 6)).astype(np.float32)
Build = Callable[[], keras.Model]


def of_layer(loss: Callable[[Any, Any], Any], *before: keras.layers.Layer, draws: bool = False) -> Build:
    def make() -> keras.Model:
        copies = [type(layer).from_config(layer.get_config()) for layer in before]
        hidden = keras.layers.Dense(5, activation="tanh", kernel_regularizer="l2")
        return keras.Sequential([keras.Input((6,)), hidden, *copies, AddLoss(loss, draws), keras.layers.Dense(6)])

    return make


class Own(keras.Model):
    """Computes its loss by a function of itself, the targets and the outputs."""

    def __init__(self, loss: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()
        self.dense, self.own = keras.layers.Dense(6), loss

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> Any:
        return self.own(self, y, y_pred)


def own(loss: Callable[[Any, Any, Any], Any]) -> Build:
    def make() -> keras.Model:
        model = Own(loss)
        model(X[:1])
        return model

    return make


def dense() -> keras.Model:
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(6)])


def compiled(make: Build, loss: Any = "mse", **arguments: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = make()
    model.compile(keras.optimizers.SGD(0.01), None if isinstance(model, Own) else loss, **arguments)
    return model


def assert_same_fit(
    make: Build, batch: int = 8, steps: int = 4, say: str | None = None, of_layers: str | None = None, **arguments: Any
) -> None:
    """Two epochs, the batches of which are not all of one size, in micro-batches and at once."""
    callbacks = arguments.pop("callbacks", [])
    targets = arguments.pop("targets", X)
    models = [compiled(make, **arguments) for _ in range(2)]
    accumulate(models[0], steps, loss=say, layer_losses=of_layers)
    fitting = {"batch_size": batch, "shuffle": False, "verbose": 0, "epochs": 2, "callbacks": callbacks}
    losses = [model.fit(X, targets, **fitting).history["loss"] for model in models]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    for ours, keras_own in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(ours, keras_own, rtol=1e-4, atol=1e-5)


# --- losses that a model is compiled with, and a compute_loss ---------------------------------------------------------


def positives(y: Any) -> Any:
    return ops.maximum(ops.sum(ops.cast(y > 0, "float32")), 1.0)


def by_rare_classes(y: Any, p: Any) -> Any:
    """Divided by a sum of weights, one of which is of a class that few examples have."""
    weights = ops.where(y[:, :1] > 1.6, 20.0, 1.0)
    return ops.sum(weights * (y - p) ** 2) / ops.sum(weights)


def without_sevens(y: Any, p: Any) -> Any:
    kept = ops.cast(y != 7, "float32")
    return ops.sum(kept * (y - p) ** 2) / ops.sum(kept)


class OverTheLargest(keras.losses.MeanSquaredError):
    """A subclass of one of Keras's own."""

    def call(self, y: Any, p: Any) -> Any:
        return super().call(y, p) / ops.max(ops.where(y > 1.6, 9.0, 1.0))


NEITHER: dict[str, tuple[Build, Any]] = {
    "weights by class, divided by their sum": (dense, lambda: by_rare_classes),
    "a mark that leaves targets out": (dense, lambda: without_sevens),
    "a subclass": (dense, OverTheLargest),
    "a value for each, divided": (dense, lambda: lambda y, p: ops.mean((y - p) ** 2, -1) / positives(y)),
    "compute_loss by the number of positives": (own(lambda _, y, p: ops.sum((y - p) ** 2) / positives(y)), None),
    "compute_loss, a mean and a sum": (own(lambda _, y, p: ops.mean((y - p) ** 2) + ops.sum(p * p)), None),
}


@pytest.mark.parametrize("name", NEITHER)
def test_without_a_word_every_loss_is_that_of_the_whole_batch(name):
    make, loss = NEITHER[name]
    for steps in (4, 8):
        assert_same_fit(make, steps=steps, loss=loss and loss(), targets=np.where(X > 1, 7, X))


def test_the_line_says_what_it_costs_and_what_saves_it(capsys):
    model = accumulate(compiled(dense, by_rare_classes), 4)
    model.fit(X, X, batch_size=10, verbose=0, epochs=2)
    assert capsys.readouterr().out == (
        "the loss by_rare_classes is your own: it is computed for all 10 examples of a batch, with a second forward "
        'pass and 240 bytes for their outputs; if it is a mean over examples, say accumulate(..., loss="mean")\n'
    )
    model.compile("sgd", keras.losses.Dice())  # compiled anew
    model.fit(X, X, batch_size=10, verbose=0)
    assert "a loss of sequential" in capsys.readouterr().out
    for word in ("mean", "batch"):
        accumulate(compiled(dense, by_rare_classes), 4, loss=word).train_on_batch(X, X)
    accumulate(compiled(dense, "mse"), 4).train_on_batch(X, X)
    assert not capsys.readouterr().out


@pytest.mark.parametrize(("say", "reduce"), [("mean", ops.mean), ("sum", ops.sum)])
def test_a_compute_loss_that_is_declared_is_exact(say, reduce):
    assert_same_fit(own(lambda model, y, p: reduce((y - p) ** 2, axis=None)), say=say)


def test_a_word_is_taken_as_it_is():
    """As the loss of micro-batches of one size, which is another."""
    losses = []
    for word in ("mean", None):
        model = accumulate(compiled(dense, by_rare_classes), 4, loss=word)
        losses.append(model.train_on_batch(X, X))
    parts = [compiled(dense, by_rare_classes).test_on_batch(X[at : at + 5], X[at : at + 5]) for at in range(0, 20, 5)]
    assert losses[0] == pytest.approx(np.mean(parts), rel=1e-5)
    assert losses[0] != pytest.approx(losses[1], rel=1e-2)


class Denoising(keras.Model):
    """Runs its layers again in its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.noise = keras.layers.Dense(6), keras.layers.GaussianNoise(0.1, seed=1)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None) -> Any:
        return ops.mean((y - self.dense(self.noise(x, training=True))) ** 2)


def denoising() -> keras.Model:
    model = Denoising()
    model(X[:1])
    model.compile(keras.optimizers.SGD(0.1))
    return model


FROZEN = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "tanh")])


def perceptual(y: Any, p: Any) -> Any:
    """By a network that is no part of the model."""
    return ops.mean((FROZEN(y) - FROZEN(p)) ** 2)


@pytest.mark.parametrize("make", [denoising, lambda: compiled(dense, perceptual)], ids=["its own", "another"])
def test_a_loss_that_runs_layers_asks_for_a_word_at_any_number_of_micro_batches(make):
    for steps in (1, 4, 20):
        with pytest.raises(ValueError, match=r'runs layers, such as .*kernel.* say loss="mean" .* or loss="batch"'):
            accumulate(make(), steps).train_on_batch(X, X)
        for word in ("mean", "batch"):
            assert np.isfinite(accumulate(make(), steps, loss=word).train_on_batch(X, X))


# --- losses that layers add -------------------------------------------------------------------------------------------


def both_terms() -> keras.Model:
    """An activity regularizer and one of weights."""
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(5, activation="tanh", kernel_regularizer="l2", activity_regularizer="l1")(inputs)
    return keras.Model(inputs, keras.layers.Dense(6)(keras.layers.ActivityRegularization(l2=0.1)(hidden)))


def test_regularizers_of_keras_need_no_word():
    assert_same_fit(both_terms)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [{"jit_compile": False}, {"run_eagerly": True}, {"steps_per_execution": 2}], ids=str
)
def test_they_are_exact_however_a_model_is_compiled(arguments):
    assert_same_fit(both_terms, **arguments)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 7, 20])
def test_they_are_exact_with_any_batch(batch):
    assert_same_fit(both_terms, batch=batch)


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss",
    [keras.losses.MeanSquaredError(reduction="sum"), lambda y, p: ops.sum((y - p) ** 2)],
    ids=["a sum", "an own loss"],
)
def test_they_are_exact_beside_other_losses(loss):
    assert_same_fit(both_terms, loss=loss)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Gradients do not exist")  # as Keras itself says
def test_losses_of_layers_alone():
    assert_same_fit(both_terms, loss=None, jit_compile=False)


def test_an_activity_regularizer_is_a_sum_before_keras_3_14(monkeypatch):
    layer = keras.layers.Dense(4, activity_regularizer="l2")
    found = []
    for version in ("3.10.0", "3.13.2", "3.14.0", "4.0.0"):
        monkeypatch.setattr(keras, "__version__", version)
        found.append(join_of_layer(layer))
    assert found == [Join.SUM, Join.SUM, Join.MEAN, Join.MEAN]
    compares_rows = keras.layers.Dense(4, activity_regularizer="orthogonal_regularizer")
    assert join_of_layer(compares_rows) is None


DROPOUT, NORM = keras.layers.Dropout(0.5), keras.layers.BatchNormalization()
ADDED = {
    "mean": of_layer(lambda z, _: ops.mean(z * z)),
    "sum": of_layer(lambda z, _: ops.sum(z * z)),
    "sum of a value for each example": of_layer(lambda z, _: ops.sum(z * z, axis=-1)),
    "sum that is 0 for most examples": of_layer(lambda z, _: ops.sum(ops.relu(z - 0.9))),
}


class OwnL2(keras.regularizers.L2):
    """A subclass, which may divide by something."""


class OwnDense(keras.layers.Dense):
    """A subclass, which may add other losses, too."""


ASKED = {
    **ADDED,
    "behind dropout": of_layer(lambda z, _: ops.mean(z * z), DROPOUT),
    "behind batch norm": of_layer(lambda z, _: ops.mean(z * z), NORM),
    "over the batch": of_layer(lambda z, _: ops.sum(ops.var(z, axis=0))),
    "a subclass": lambda: keras.Sequential([keras.Input((6,)), OwnDense(6, activity_regularizer="l2")]),
    "a subclass of a regularizer": lambda: keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(6, activity_regularizer=OwnL2(0.1))]
    ),
    "an own regularizer": lambda: keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(6, activity_regularizer=lambda z: ops.sqrt(ops.sum(z * z)))]
    ),
}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("say", [None, "batch"])
def test_all_other_losses_of_layers_ask_for_a_word(name, say):
    model = accumulate(compiled(ASKED[name], jit_compile=False), 4, loss=say)
    with pytest.raises(ValueError, match=r'adds a loss of your own.*say layer_losses="mean" if .*layer_losses="sum"'):
        model.train_on_batch(X, X)


@pytest.mark.parametrize("name", ADDED)
@pytest.mark.parametrize("loss", ["mse", pytest.param(OverTheLargest(), marks=pytest.mark.slow)], ids=["known", "own"])
def test_with_it_they_are_exact(name, loss):
    assert_same_fit(ADDED[name], of_layers=name.split()[0], loss=loss, jit_compile=False)


def test_a_value_for_each_example_is_no_mean():
    model = accumulate(compiled(ADDED["sum of a value for each example"], jit_compile=False), 4, layer_losses="mean")
    with pytest.raises(ValueError, match='value for each example, and Keras adds these up: say layer_losses="sum"'):
        model.train_on_batch(X, X)


def test_a_sum_that_begins_with_the_factor_zero_is_exact():
    class Annealed(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.factor = self.add_weight(shape=(), initializer="zeros", trainable=False)

        def call(self, z: Any) -> Any:
            self.add_loss(self.factor * ops.sum(z * z))
            return z

    class Raise(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.model.layers[0].factor.assign(float(epoch))

    def make() -> keras.Model:
        return keras.Sequential([keras.Input((6,)), Annealed(), keras.layers.Dense(6)])

    assert_same_fit(make, of_layers="sum", callbacks=[Raise()], jit_compile=False)


SPARSE = {  # the examples of a batch for which the sum is not 0
    "none, then the later half": [[], [4, 5, 6, 7]],
    "the later half": [[4, 5, 6, 7]],
    "one": [[1]],
    "all, then the later half": [range(8), [4, 5, 6, 7]],
}


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("at_once", [1, 2])
def test_sums_that_are_0_for_some_examples_are_exact(name: str, at_once: int):
    def make() -> keras.Model:
        above, below = AddLoss(lambda z, _: ops.sum(ops.relu(z))), AddLoss(lambda z, _: ops.sum(ops.relu(-z - 1.5)))
        return keras.Sequential([keras.Input((6,)), above, below, keras.layers.Dense(6)])

    x = -np.abs(np.tile(X[:8], [len(SPARSE[name]), 1]))
    for place, batch in enumerate(SPARSE[name]):
        x[[8 * place + example for example in batch]] *= -1
    models = [compiled(make, steps_per_execution=at_once) for _ in range(2)]
    accumulate(models[0], 2, layer_losses="sum")
    ours, expected = (model.fit(x, x, batch_size=8, shuffle=False, verbose=0).history["loss"] for model in models)
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


REPLICAS = """
import keras, numpy as np, tensorflow as tf
from tests.keras.programs import mirrored
strategy = mirrored()
from accumtrain.keras import accumulate
from tests.keras.cases import AddLoss
from tests.keras.test_split_loss import X, compiled
penalty = lambda z, _: keras.ops.sum(keras.ops.relu(z))
make = lambda: keras.Sequential([keras.Input((6,)), AddLoss(penalty), keras.layers.Dense(6)])
x = -np.abs(X[:15])
x[8:] *= -1  # those of the second replica
losses = []
for steps in (None, 2):
    with strategy.scope():
        model = compiled(make)
    if steps:
        accumulate(model, steps, layer_losses="sum")
    data = tf.data.Dataset.from_tensor_slices((x[[*range(8)] * 2 + [*range(15)]],) * 2).batch(16)
    losses += model.fit(data, verbose=0).history["loss"]
np.testing.assert_allclose(*losses, rtol=1e-5)
"""


@pytest.mark.slow
def test_sums_that_are_0_for_the_first_replica_are_exact():
    run_python("-c", REPLICAS)
