"""Keras's own losses and metrics: each is in the table, and its micro-batches make the loss of the batch."""

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import keras
import numpy as np
import pytest
from keras import losses, metrics

from accumtrain.keras import accumulate, known
from accumtrain.keras.known import Declared, Join, adds_up, join_of
from tests.keras.programs import run_python

NOTHING = Declared()
OUTPUT, IMAGES, ROW = keras.KerasTensor((None, 4)), keras.KerasTensor((None, 4, 4, 3)), keras.KerasTensor((None,))
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(12, 6)).astype(np.float32)
CLASSES = DRAW.integers(0, 4, 12)
CLASSES[-1] = 3  # a class that the first micro-batches lack
ONE_HOT = np.eye(4, dtype=np.float32)[CLASSES]
RATES = DRAW.uniform(0.1, 0.9, (12, 4)).astype(np.float32)
ARGUMENTS: dict[str, dict[str, Any]] = {"CategoricalGeneralizedCrossEntropy": {"q": 0.5}}
OF_CLASSES = ("SparseCategoricalCrossentropy", "CategoricalGeneralizedCrossEntropy", "Circle")
OF_THE_BATCH = {"Circle", "Dice", "Tversky"}


def public(module: Any, kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if isinstance(value, kind) and name[0] != "_"}


LOSSES = {name: make for name, make in public(losses, type).items() if name != "Loss"}
HELPERS = {"deserialize", "get", "serialize"}


def test_every_function_of_keras_is_in_the_table():
    assert public(losses, FunctionType).keys() - HELPERS == known.FUNCTIONS.keys()
    assert public(metrics, FunctionType).keys() - HELPERS <= known.METRIC_FUNCTIONS.keys()


def test_every_metric_of_keras_is_in_the_table():
    of_functions = {"Metric", "MeanMetricWrapper"}
    assert public(metrics, type).keys() - of_functions == {*known.METRICS, *known.METRICS_OF_CLASSES}


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_of_keras_is_known_by_itself_and_by_its_function(name):
    loss = LOSSES[name](**ARGUMENTS.get(name, {}))
    expected = Join.BATCH if name in OF_THE_BATCH else Join.MEAN
    wrapped = known.LOSS_OF_FUNCTION(loss.fn, **loss._fn_kwargs)  # as compile does with a function and a name
    assert [join_of(each, OUTPUT, NOTHING) for each in (loss, wrapped)] == [expected] * 2
    summed = LOSSES[name](**ARGUMENTS.get(name, {}), reduction="sum")
    assert join_of(summed, OUTPUT, NOTHING) is (Join.BATCH if name in OF_THE_BATCH else Join.SUM)


class Mine(losses.MeanSquaredError):
    """A subclass that changes nothing."""


def changed(name: str, value: Any) -> losses.Loss:
    loss = losses.MeanSquaredError()
    setattr(loss, name, value)
    return loss


AXES = [losses.CosineSimilarity, losses.BinaryCrossentropy, losses.CategoricalCrossentropy]
AXES += [losses.BinaryFocalCrossentropy, losses.CategoricalFocalCrossentropy, losses.SparseCategoricalCrossentropy]


@pytest.mark.parametrize("make", AXES)
def test_an_axis_of_examples_needs_the_whole_batch(make):
    assert join_of(make(axis=0), OUTPUT, NOTHING) is Join.BATCH
    assert join_of(make(axis=-2), OUTPUT, NOTHING) is Join.BATCH
    assert join_of(make(axis=-2), IMAGES, NOTHING) is Join.MEAN
    assert join_of(make(axis=1), OUTPUT, NOTHING) is Join.MEAN
    assert join_of(make(), ROW, NOTHING) is Join.BATCH  # the last axis is that of examples


@pytest.mark.parametrize("make", [losses.Dice, losses.Tversky])
def test_a_score_of_each_image_is_known(make):
    assert join_of(make(axis=(1, 2, 3)), IMAGES, NOTHING) is Join.MEAN
    assert join_of(make(axis=(0, 1)), IMAGES, NOTHING) is Join.BATCH
    assert join_of(make(axis=(-4, -1)), IMAGES, NOTHING) is Join.BATCH


@pytest.mark.parametrize(
    "loss",
    [
        Mine(),
        known.LOSS_OF_FUNCTION(lambda y, p: losses.mean_squared_error(y, p)),
        known.LOSS_OF_FUNCTION(partial(losses.cosine_similarity, axis=0)),
        changed("fn", lambda y, p: losses.mean_squared_error(y, p)),
        changed("call", losses.mean_squared_error),
    ],
    ids=["subclass", "function", "partial", "another function", "another call"],
)
def test_what_is_not_keras_own_is_what_is_declared(loss):
    joins = [join_of(loss, OUTPUT, Declared(word)) for word in (None, "mean", "sum", "batch")]
    assert joins == [Join.BATCH, Join.MEAN, Join.SUM, Join.BATCH]


def test_words_are_checked_and_the_old_one_is_answered():
    model = keras.Sequential([keras.layers.Dense(1)])
    with pytest.raises(ValueError, match=r'loss=True: say "mean" for the mean .* or "batch" for .*, or leave it out'):
        accumulate(model, 4, loss=True)
    with pytest.raises(ValueError, match=r"layer_losses='batch': say \"mean\""):
        accumulate(model, 4, layer_losses="batch")
    with pytest.raises(TypeError, match=r'no argument whole_batch any more: say loss="batch"'):
        accumulate(model, 4, whole_batch=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'step'"):
        accumulate(model, 4, step=1)


@pytest.mark.parametrize(
    ("metric", "output", "known_to_add_up"),
    [
        (metrics.MeanSquaredError(), OUTPUT, True),
        (metrics.MeanSquaredError(), ROW, False),
        (metrics.MeanMetricWrapper(losses.huber), OUTPUT, True),
        (metrics.MeanMetricWrapper(losses.dice), OUTPUT, False),
        (metrics.MeanMetricWrapper(losses.MeanSquaredError()), OUTPUT, False),
        (metrics.MeanMetricWrapper(lambda y, p: losses.mean_squared_error(y, p)), OUTPUT, False),
        (metrics.CosineSimilarity(axis=0), OUTPUT, False),
        (metrics.PearsonCorrelation(axis=(-1, -2)), OUTPUT, False),
        (metrics.ConcordanceCorrelation(), OUTPUT, True),
        (metrics.OneHotMeanIoU(3, axis=0), IMAGES, False),
        (metrics.OneHotMeanIoU(3), IMAGES, True),
        (metrics.F1Score(average="macro"), OUTPUT, True),
        (type("Mine", (metrics.AUC,), {})(), OUTPUT, False),
    ],
)
def test_metrics_that_add_up(metric, output, known_to_add_up):
    assert adds_up(metric, output) is known_to_add_up


# --- their values -----------------------------------------------------------------------------------------------------


def fitted(loss: losses.Loss, steps: int | None) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "softmax")])
    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
    if steps:
        accumulate(model, steps)
    targets = CLASSES if type(loss).__name__ in OF_CLASSES else RATES
    targets = ONE_HOT if "Hinge" in type(loss).__name__ else targets
    model.fit(X, targets, batch_size=12, shuffle=False, verbose=0, epochs=2)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LOSSES.keys() - {"CTC"}))  # whose examples are sequences
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum"])
def test_updates_are_those_of_the_whole_batch(name, reduction):
    loss = partial(LOSSES[name], **ARGUMENTS.get(name, {}), reduction=reduction)
    for ours, plain in zip(fitted(loss(), 5).get_weights(), fitted(loss(), None).get_weights(), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_sequences_of_ctc():
    def make(steps: int | None) -> keras.Model:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((7, 6)), keras.layers.Dense(5)])
        model.compile(keras.optimizers.SGD(0.01), losses.CTC(), jit_compile=False)
        if steps:
            accumulate(model, steps)
        x, y = np.random.default_rng(0).normal(size=(8, 7, 6)), np.random.default_rng(0).integers(1, 5, (8, 3))
        model.fit(x, y, batch_size=8, verbose=0)
        return model

    for ours, plain in zip(make(3).get_weights(), make(None).get_weights(), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-5, atol=1e-6)


SATURATED: dict[str, Callable[[], Any]] = {
    "known": lambda: "categorical_crossentropy",
    "own": lambda: lambda y, p: losses.categorical_crossentropy(y, p),
    "along examples": lambda: losses.CategoricalCrossentropy(axis=0),
}


@pytest.mark.parametrize("name", SATURATED)
def test_a_loss_is_computed_from_the_logits_behind_probabilities_as_keras_does(name):
    weights = []
    for steps in (None, 4):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "softmax")])
        model.compile(keras.optimizers.SGD(0.1), SATURATED[name](), jit_compile=False)
        if steps:
            accumulate(model, steps)
        model.fit(100 * X, ONE_HOT, batch_size=12, verbose=0)  # probabilities of 0, whose logarithm Keras clips
        weights.append(model.get_weights())
    for plain, ours in zip(*weights, strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-5)


REPLICAS = """
import keras, numpy as np
from tests.keras.programs import mirrored
strategy = mirrored()
from accumtrain.keras import accumulate
from tests.keras.test_known import ARGUMENTS, CLASSES, LOSSES, OF_CLASSES, ONE_HOT, RATES, X

def weights(loss, targets, scope=None, say=None):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "softmax")])
    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)
    if scope:
        accumulate(model, 2, loss=say)
    model.fit(X, targets, batch_size=12, shuffle=False, verbose=0)
    return model.get_weights()

def check(name, make, targets, say=None):
    with strategy.scope():
        ours = weights(make(), targets, strategy, say)
    for a, b in zip(ours, weights(make(), targets), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=f"{name} {say}")

for name in ("MeanSquaredError", "Dice", "Circle", "SparseCategoricalCrossentropy"):
    targets = CLASSES if name in OF_CLASSES else RATES
    check(name, lambda: LOSSES[name](**ARGUMENTS.get(name, {})), targets)
mean = lambda y, p: keras.ops.mean((y - p) ** 2)
each = lambda y, p: keras.ops.mean((y - p) ** 2, axis=-1)
total = lambda y, p: keras.ops.sum((y - p) ** 2)
for word, make in (("mean", mean), ("mean", each), ("sum", total)):
    for say in (word, None):
        check(word, lambda: make, RATES, say)
"""


@pytest.mark.slow
def test_replicas_make_the_update_of_one_big_batch():
    run_python("-c", REPLICAS)
