"""Metrics of `accumulate` that are no sums over examples: they are those of the whole batch, or are refused."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from accumtrain.keras import accumulate
from accumtrain.keras.accumulate_step import WholeBatchMetrics, specs_of_outputs
from tests.keras.gradients import unchanged

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(34, 6)).astype(np.float32)
WEIGHTS = DRAW.uniform(0.1, 2.0, 34).astype(np.float32)


def rmse(y: Any, p: Any) -> Any:
    return ops.sqrt(ops.mean(ops.square(y - p)))


def errors(y: Any, p: Any) -> Any:
    return ops.mean(ops.abs(y - p), axis=-1)


def by_the_largest(y: Any, p: Any) -> Any:
    return errors(y, p) / ops.max(p)


class RootOfBatch(keras.metrics.Mean):
    """The mean over batches of a number for each."""

    def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
        super().update_state(rmse(y, p))


class RecallWhereIn(keras.metrics.Mean):
    """Of a rare class, over the batches that have it."""

    def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
        rare = ops.cast(y[:, 0] > 1.6, "float32")
        found = ops.sum(rare * ops.cast(p[:, 0] > 0, "float32"))
        super().update_state(found / ops.maximum(ops.sum(rare), 1.0), ops.cast(ops.sum(rare) > 0, "float32"))


class Errors(keras.metrics.Mean):
    def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
        super().update_state(errors(y, p), sample_weight)


def dense() -> keras.Model:
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(6)])


def two_outputs() -> keras.Model:
    inputs = keras.Input((6,))
    outputs = {"b": keras.layers.Dense(6, name="b")(inputs), "a": keras.layers.Dense(6, name="a")(inputs)}
    return keras.Model(inputs, outputs)


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(6)

    def call(self, x: Any) -> Any:
        return self.dense(x)


METRICS: dict[str, tuple[Callable[[], Any], bool]] = {  # whether the state of a batch is that of its parts
    "a function of one number": (lambda: rmse, False),
    "a function that joins examples": (lambda: by_the_largest, False),
    "a metric of one number": (RootOfBatch, False),
    "a loss of Keras's": (keras.losses.MeanSquaredError, False),
    "dice": (lambda: keras.losses.dice, False),
    "a function of each example": (lambda: errors, False),
    "a metric of each example": (Errors, False),
    "a number of each batch that has a class": (RecallWhereIn, False),
    "along the axis of examples": (lambda: keras.metrics.CosineSimilarity(axis=0), False),
    "mse": (lambda: "mse", True),
    "R2": (keras.metrics.R2Score, True),
    "AUC": (keras.metrics.AUC, True),
}


def compiled(build: Callable[[], keras.Model], **arguments: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = build()
    model.compile(**{"optimizer": keras.optimizers.SGD(0.01), "loss": "mse", **arguments})
    return model


@pytest.mark.parametrize("name", METRICS)
def test_metrics_that_need_the_whole_batch_are_found(name):
    make, adds_up = METRICS[name]
    model = compiled(dense, metrics=[make()])
    x = ops.convert_to_tensor(X)
    model._symbolic_build(data_batch=(x, x))
    with unchanged(model.metrics_variables):
        assert bool(WholeBatchMetrics(model, (x, x, None), specs_of_outputs(model, x)).variables) is not adds_up


def assert_same_metrics(build: Callable[[], keras.Model], targets: Any, **arguments: Any) -> None:
    """Of batches of 32 and 2 in micro-batches and at once; metrics that are functions make a new object."""
    weights = arguments.pop("sample_weight", None)
    histories = []
    for steps in (0, 3):
        model = compiled(build, **keras.tree.map_structure(lambda each: each(), arguments))
        if steps:
            accumulate(model, steps)
        fitted = model.fit(X, targets, sample_weight=weights, batch_size=32, epochs=2, shuffle=False, verbose=0)
        histories.append(fitted.history)
    assert histories[0].keys() == histories[1].keys()
    for name, values in histories[0].items():
        np.testing.assert_allclose(histories[1][name], values, rtol=1e-5, err_msg=name)


ALL = [make for name, (make, _) in METRICS.items() if name != "AUC"]


def test_all_are_those_of_the_whole_batch():
    weighted = [lambda: by_the_largest, Errors]
    assert_same_metrics(dense, X[::-1], metrics=ALL, weighted_metrics=weighted, sample_weight=WEIGHTS)


@pytest.mark.slow
def test_of_several_outputs_and_of_a_subclassed_model():
    assert_same_metrics(two_outputs, {"a": X, "b": 2 * X}, metrics={"a": [lambda: rmse], "b": [RootOfBatch]})
    assert_same_metrics(Subclassed, X, metrics=ALL)


class OwnLogs(keras.Model):
    """Shows a number of the whole batch, and keeps its mean."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.largest = keras.metrics.Mean(name="largest")

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        self.largest.update_state(ops.max(ops.abs(y - y_pred)))
        return {**super().compute_metrics(x, y, y_pred, sample_weight), "now": rmse(y, y_pred)}


def own_logs() -> keras.Model:
    inputs = keras.Input((6,))
    return OwnLogs(inputs, keras.layers.Dense(6)(inputs))


def test_a_compute_metrics_of_the_models_own_gets_the_whole_batch():
    assert_same_metrics(own_logs, X, metrics=[lambda: rmse, keras.metrics.MeanSquaredError], sample_weight=WEIGHTS)


@pytest.mark.parametrize(("length", "because"), [(5, "a mask"), (None, "sizes that are not known before")])
def test_outputs_that_can_not_be_kept_are_refused(length, because):
    inputs = keras.Input((length, 6))
    hidden = keras.layers.Masking()(inputs) if length else inputs
    model = accumulate(keras.Model(inputs, keras.layers.Dense(6)(hidden)), 2)
    batch = tf.TensorSpec([None, length, 6])
    examples = tf.data.Dataset.from_generator(lambda: [(np.ones([4, 5, 6]),) * 2], output_signature=(batch, batch))
    examples = examples.apply(tf.data.experimental.assert_cardinality(1))
    model.compile("sgd", "mse", metrics=[by_the_largest], jit_compile=False)
    with pytest.raises(
        ValueError, match=f"by_the_largest is not known to add up, .*has {because}: take one of keras.metrics"
    ):
        model.fit(examples, shuffle=False, verbose=0)
    model.compile("sgd", "mse", metrics=["mae"], jit_compile=False)  # as the message says
    model.fit(examples, shuffle=False, verbose=0)
