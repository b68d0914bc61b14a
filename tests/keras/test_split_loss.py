"""The loss of real examples: terms that are means or sums are exact in micro-batches, all others are refused."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from accumtrain.keras import accumulate
from accumtrain.keras.loss_trial import LossTrial
from accumtrain.keras.split_loss import LossShare, LossTerms, Trials
from tests.keras.cases import AddLoss
from tests.keras.gradients import unchanged
from tests.keras.programs import run_python

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(20, 6)).astype(np.float32)
NO_TERM = "neither the mean nor the sum of the losses of its examples"


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
        self.dense, self.own = keras.layers.Dense(6, activity_regularizer="l1"), loss

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


def compiled(make: Build, loss: Any = "mse", **arguments: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = make()
    model.compile(keras.optimizers.SGD(0.01), None if isinstance(model, Own) else loss, **arguments)
    return model


def terms_of(make: Build, x: np.ndarray = X, y: np.ndarray = X, loss: Any = "mse") -> LossTerms:
    model = compiled(make, loss)
    model._symbolic_build(data_batch=(x, y))
    with unchanged(model.variables):
        return LossTrial(model, (ops.array(x), ops.array(y), None), 8, LossShare(model, Trials())).find_terms(None)


def positives(y: Any) -> Any:
    return ops.sum(ops.cast(y > 0, "float32"))


DROPOUT, NORM = keras.layers.Dropout(0.5), keras.layers.BatchNormalization()
TERMS = {  # whether the loss that a layer adds is a sum
    "a mean": (of_layer(lambda z, _: ops.mean(z * z)), False),
    "a constant": (of_layer(lambda z, _: ops.sum(ops.ones(3))), False),
    "a sum": (of_layer(lambda z, _: ops.sum(z * z)), True),
    "a value for each example": (of_layer(lambda z, _: ops.sum(z * z, axis=-1)), True),
    "a sum of either sign": (of_layer(lambda z, _: ops.sum(z)), True),
    "a sum that is 0 for some examples": (of_layer(lambda z, _: ops.sum(ops.relu(z - 0.5))), True),
    "a sum behind dropout": (of_layer(lambda z, _: ops.sum(z * z), DROPOUT), True),
    "a mean behind batch statistics": (of_layer(lambda z, _: ops.mean(z * z), NORM), False),
    "a sum behind batch statistics": (of_layer(lambda z, _: ops.sum(z * z), NORM), True),
    "a mean of random draws": (of_layer(lambda z, d: ops.mean((z + d) ** 2), draws=True), False),
    "a sum of random draws": (of_layer(lambda z, d: ops.sum((z + d) ** 2), draws=True), True),
}
NEITHER = {
    "a norm": of_layer(lambda z, _: ops.sqrt(ops.sum(z * z))),
    "a norm of random draws": of_layer(lambda z, d: ops.sqrt(ops.sum((z + d) ** 2)), draws=True),
    "a variance over the batch": of_layer(lambda z, _: ops.sum(ops.var(z, axis=0))),
    "the logarithm of one": of_layer(lambda z, _: ops.sum(ops.log(ops.var(z, axis=0)))),
    "by the number of positives": of_layer(lambda z, _: ops.sum(z * z) / positives(z)),
    "compute_loss by the number of positives": own(lambda _, y, p: ops.sum((y - p) ** 2) / positives(y)),
    "compute_loss, a mean and a sum": own(lambda _, y, p: ops.mean((y - p) ** 2) + ops.sum(p * p)),
}


@pytest.mark.parametrize("name", TERMS)
def test_losses_of_layers_are_told_apart_and_nothing_changes(name):
    make, is_sum = TERMS[name]
    assert terms_of(make) == LossTerms("mean", ("sum" if is_sum else "mean",))


@pytest.mark.parametrize("name", NEITHER)
def test_what_is_neither_is_refused_with_the_remedy(name):
    with pytest.raises(ValueError, match=f"{NO_TERM}.*make it a mean over the examples, such as keras.ops.mean"):
        terms_of(NEITHER[name])


@pytest.mark.parametrize("is_sum", [False, True])
def test_a_compute_loss_of_the_models_own(is_sum):
    reduce = ops.sum if is_sum else ops.mean
    found = terms_of(own(lambda model, y, p: reduce((y - p) ** 2)))
    assert found.total == ("sum" if is_sum else "mean")


def test_targets_that_only_real_examples_show():
    def without_sevens(y: Any, p: Any) -> Any:
        kept = ops.cast(y != 7, "float32")
        return ops.sum(kept * (y - p) ** 2) / ops.sum(kept)

    with pytest.raises(ValueError, match=f"the loss of .*{NO_TERM}"):
        terms_of(lambda: keras.Sequential([keras.layers.Dense(6)]), y=np.where(X > 1, 7, X), loss=without_sevens)


def test_a_loss_of_zero_and_a_single_example_leave_it_open():
    zero = of_layer(lambda z, _: 0.0 * ops.sum(z))
    assert terms_of(zero) == LossTerms("mean", (None,))
    assert terms_of(TERMS["a sum"][0], X[:1], X[:1]) == LossTerms("mean", (None,))


def test_draws_of_tensorflow_in_training_only_do_not_matter():
    class Noise(keras.layers.Layer):
        def call(self, z: Any, training: bool = False) -> Any:
            return z + tf.random.normal(tf.shape(z)) if training else z

    def make() -> keras.Model:
        layers = [Noise(), AddLoss(lambda z, _: ops.sum(z * z)), keras.layers.Dense(6)]
        return keras.Sequential([keras.Input((6,)), *layers])

    assert terms_of(make, loss=lambda y, p: ops.mean((y - p) ** 2, axis=-1)) == LossTerms("mean", ("sum",))


class InTraining(keras.layers.Layer):
    """Adds a mean in training only, or a sum that is 0 outside of it."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.always = always

    def call(self, z: Any, training: bool = False) -> Any:
        if self.always:
            self.add_loss((1.0 if training else 0.0) * ops.sum(z * z))
        elif training:
            self.add_loss(ops.mean(z))
        return z


@pytest.mark.parametrize("always", [False, True])
def test_a_loss_in_training_only_is_refused_beside_random_draws(always):
    layers = [InTraining(always), keras.layers.Dense(6), keras.layers.Dropout(0.5)]
    with pytest.raises(ValueError, match=r"in training only.*call add_loss whatever `training` is, with the same fac"):
        terms_of(lambda: keras.Sequential(layers))
    assert terms_of(lambda: keras.Sequential(layers[:2])) == LossTerms("mean", ("sum" if always else "mean",))


def assert_same_fit(make: Build, batch: int = 8, steps: int = 4, **arguments: Any) -> None:
    """Two epochs, the batches of which are not all of one size, in micro-batches and at once."""
    callbacks = arguments.pop("callbacks", [])
    models = [compiled(make, **arguments) for _ in range(2)]
    accumulate(models[0], steps)
    fitting = {"batch_size": batch, "shuffle": False, "verbose": 0, "epochs": 2, "callbacks": callbacks}
    losses = [model.fit(X, X, **fitting).history["loss"] for model in models]
    np.testing.assert_allclose(*losses, rtol=1e-4)
    for ours, keras_own in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(ours, keras_own, rtol=1e-4, atol=1e-5)


def both_terms() -> keras.Model:
    """A mean, a sum, an activity regularizer and one of weights."""
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(5, activation="tanh", kernel_regularizer="l2", activity_regularizer="l1")(inputs)
    hidden = AddLoss(lambda z, _: 0.1 * ops.sum(z * z))(hidden)
    return keras.Model(inputs, keras.layers.Dense(6)(AddLoss(lambda z, _: ops.mean(z * z))(hidden)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [{"jit_compile": False}, {"run_eagerly": True}, {"steps_per_execution": 2}], ids=str
)
def test_means_and_sums_are_exact_in_fit(arguments):
    assert_same_fit(both_terms, **arguments)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 7, 20])
def test_means_and_sums_are_exact_with_any_batch(batch):
    assert_same_fit(both_terms, batch=batch)


@pytest.mark.slow
def test_means_and_sums_beside_a_loss_that_is_a_sum():
    assert_same_fit(both_terms, loss=keras.losses.MeanSquaredError(reduction="sum"))


@pytest.mark.parametrize("reduce", [ops.mean, pytest.param(ops.sum, marks=pytest.mark.slow)])
def test_own_losses_are_exact_in_fit(reduce):
    assert_same_fit(own(lambda model, y, p: reduce((y - p) ** 2, axis=None)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Gradients do not exist")  # as Keras itself says
def test_losses_of_layers_alone():
    assert_same_fit(both_terms, loss=None, jit_compile=False)


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

    assert_same_fit(make, callbacks=[Raise()], jit_compile=False)


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
    accumulate(models[0], 2)
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
        accumulate(model, steps)
    data = tf.data.Dataset.from_tensor_slices((x[[*range(8)] * 2 + [*range(15)]],) * 2).batch(16)
    losses += model.fit(data, verbose=0).history["loss"]
np.testing.assert_allclose(*losses, rtol=1e-5)
"""


@pytest.mark.slow
def test_sums_that_are_0_for_the_first_replica_are_exact():
    run_python("-c", REPLICAS)


def test_micro_batches_of_one_example_are_tried_with_two():
    model = accumulate(compiled(of_layer(lambda z, _: ops.mean(ops.var(z, axis=0)))), 8)
    with pytest.raises(ValueError, match=NO_TERM):
        model.train_on_batch(X[:8], X[:8])


def of_rare(loss: Callable[[Any, Any], Any]) -> Callable[[], keras.Model]:
    """Adds a loss of the examples above 1.6 in their first value, of which `X` has one."""

    class Rare(keras.layers.Layer):
        def call(self, z: Any) -> Any:
            self.add_loss(loss(z, ops.cast(z[:, :1] > 1.6, "float32")))
            return z

    return lambda: keras.Sequential([keras.Input((6,)), Rare(), keras.layers.Dense(6)])


@pytest.mark.parametrize("arguments", [{"batch": 20}, {"batch": 4, "steps_per_execution": 5}], ids=str)
def test_a_sum_that_most_examples_have_no_part_in_is_exact(arguments):
    assert list(np.flatnonzero(X[:, 0] > 1.6)) == [8]
    assert_same_fit(of_rare(lambda z, rare: ops.sum(rare * z * z)), jit_compile=False, **arguments)


def test_what_few_examples_divide_is_refused_where_it_is_seen():
    make = of_rare(lambda z, rare: ops.sum(rare * z * z) / (1 + ops.sum(rare)))
    model = accumulate(compiled(make, jit_compile=False), 2)
    model.fit(X[:4], X[:4], batch_size=4, verbose=0)
    with pytest.raises(ValueError, match=NO_TERM):
        model.fit(X, X, batch_size=4, shuffle=False, verbose=0)


def test_each_compile_tries_its_own_loss():
    model = accumulate(compiled(lambda: keras.Sequential([keras.Input((6,)), keras.layers.Dense(6)])), 4)
    model.train_on_batch(X, X)
    model.compile("sgd", lambda y, p: ops.sum((y - p) ** 2, axis=-1) / ops.max(ops.where(y > 1, 9.0, 1.0)))
    with pytest.raises(ValueError, match=NO_TERM):
        model.train_on_batch(X, X)


def test_a_step_that_never_saw_examples_is_refused():
    model = accumulate(compiled(both_terms), 4)
    with pytest.raises(ValueError, match="have to be seen with real examples first: train with fit"):
        model.train_step((ops.array(X), ops.array(X)))
    model.train_on_batch(X, X)
    model.train_step((ops.array(X), ops.array(X)))
