"""What is not finite is found, wherever it begins, and named; what is healthy is not suspected."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.engine.step import Step
from accumtrain.engine.window import all_finite
from accumtrain.optim.config import AdafactorConfig, AdamConfig, KerasOptimConfig, SgdConfig
from accumtrain.train.recovery import describe_state, describe_window
from tests.engine.small import examples, resnet20, train, window_for

SHAPE = (8, 8, 1)
OPTIMIZERS = {
    "sgd": SgdConfig(lr=0.01, momentum=0.9),
    "adam": AdamConfig(lr=1e-3),
    "adafactor": AdafactorConfig(lr=0.01),
    "lion": KerasOptimConfig(lr=1e-4, name="Lion"),
}


def window_with(optim="sgd", **options):
    return window_for(resnet20(units=(1, 1)), OPTIMIZERS[optim], SHAPE, **options)


def batches(count=3):
    return [examples(8, SHAPE, seed) for seed in range(count)]


def plant_after_updates(window, variable, value, step=1):
    """Makes the optimizer leave `value` in a variable in the update after `step` updates."""
    apply = window.optimizer.apply

    def planted(gradients, rate, done, scale):
        apply(gradients, rate, done, scale)
        variable.assign_add(tf.where(done == step, tf.cast(value, variable.dtype), 0.0) * tf.ones_like(variable))

    window.optimizer.apply = planted


@pytest.mark.parametrize("optim", OPTIMIZERS)
def test_healthy_updates_are_finite(optim):
    updates = train(window_with(optim), batches(), 2)
    assert all(update["finite"] and update["state_finite"] for update in updates)


@pytest.mark.parametrize("value", [pytest.param(float("inf"), marks=pytest.mark.slow), float("nan")])
@pytest.mark.parametrize("optim", OPTIMIZERS)
@pytest.mark.parametrize("place", ["weight", "optimizer state", "statistics"])
def test_what_an_update_leaves_is_looked_at(optim, place, value):
    window = window_with(optim)
    variables = {
        "weight": window.variables_[-1],
        "optimizer state": [each for each in window.optimizer.state if each.dtype.is_floating][-1],
        "statistics": window.statistics.variables_[-1],
    }
    plant_after_updates(window, variables[place], value)
    updates = train(window, batches(2), 2)
    assert [update["finite"] for update in updates] == [True, True]
    assert [update["state_finite"] for update in updates] == [True, False]
    assert describe_state(window).startswith("optimizer/" if place == "optimizer state" else "model/")


@pytest.mark.parametrize(("count", "more"), [(1, ""), (3, ""), (4, " and 1 more"), (6, " and 3 more")])
def test_three_variables_are_named(count, more):
    window = window_with()
    for variable in window.variables_[:count]:
        variable.assign(float("nan") * variable)
    text = describe_state(window)
    assert text.endswith(f"{more} infinite or NaN")
    assert (" more" in text) == bool(more)
    assert text.count("model/") == min(count, 3)


def test_a_window_that_is_not_finite_changes_nothing_and_is_described():
    window = window_with(micro_steps=4)
    before = [variable.numpy() for variable in [*window.model.variables, *window.optimizer.state]]
    bad = examples(32, SHAPE)
    bad["image"] = tf.tensor_scatter_nd_update(bad["image"], [[20, 0, 0, 0]], [float("nan")])  # of micro-step 3
    (update,) = train(window, [bad], 4)
    assert not update["finite"]
    assert update["state_finite"]
    assert update["step"] == 0
    after = [variable.numpy() for variable in [*window.model.variables, *window.optimizer.state]]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    iterator = iter(tf.data.Dataset.from_tensor_slices(bad).batch(8))
    text = describe_window(window, Step(window), iterator)
    assert text.startswith("at micro-step 3 of 4 in ")
    assert "model/" in text
    assert all(not buffer.numpy().any() for buffer in window.buffers)


def test_a_loss_that_is_not_finite_is_named_before_the_gradients():
    window = window_with(micro_steps=4)
    bad = examples(32, SHAPE)
    bad["weight"] = tf.tensor_scatter_nd_update(bad["weight"], [[9]], [float("inf")])  # of micro-step 2
    text = describe_window(window, Step(window), iter(tf.data.Dataset.from_tensor_slices(bad).batch(8)))
    assert text.startswith("at micro-step 2 of 4 in the loss and the gradients of model/")


def test_statistics_that_overflow_stop_the_update():
    window = window_with()
    before = [variable.numpy() for variable in window.statistics.variables_]
    huge = examples(8, SHAPE)
    huge["image"] *= 1e30  # batch norm makes loss and gradient finite again
    (update,) = train(window, [huge], 2)
    assert not update["finite"]
    assert np.isfinite(update["loss"])
    after = [variable.numpy() for variable in window.statistics.variables_]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert describe_window(window, Step(window), iter(tf.data.Dataset.from_tensors(huge))) == "in the batch statistics"


@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (lambda window: None, "though it is when its micro-batches are computed once more"),
        (lambda window: setattr(window, "schedule", lambda step: tf.constant(np.inf)), "in the learning rate"),
        (lambda window: window.gradients[0].assign_add(1e30 + window.gradients[0]), "in the norm of the gradient"),
    ],
    ids=["nothing", "rate", "norm"],
)
def test_what_no_micro_step_shows_is_named_by_itself(plant, said):
    window = window_with(micro_steps=2)
    plant(window)
    text = describe_window(window, Step(window), iter(tf.data.Dataset.from_tensor_slices(examples(16, SHAPE)).batch(8)))
    assert text == said


def test_several_updates_in_one_call_end_at_the_bad_one():
    window = window_with()
    plant_after_updates(window, window.variables_[0], float("inf"))
    data = {key: tf.concat([each[key] for each in batches(5)], 0) for key in batches(1)[0]}
    step = Step(window)
    update = step.updates(iter(tf.data.Dataset.from_tensor_slices(data).batch(8)), 5)
    assert update["step"].numpy() == 2
    assert not update["state_finite"].numpy()


@pytest.mark.parametrize(
    ("values", "finite"),
    [([1e38], True), ([3e38, -3e38, 1.0], True), ([float("inf")], False), ([float("inf"), float("-inf")], False)],
)
def test_all_finite(values, finite):
    assert bool(all_finite([tf.constant(values)])) == finite


def test_a_metric_that_was_not_finite_is_so_once():
    def label_over_weight(labels, logits):
        return tf.where(labels == 3, float("nan"), 1.0)

    window = window_with(metrics={"odd": label_over_weight})
    data = batches(3)
    data[0]["label"] = tf.fill([8], tf.constant(3, data[0]["label"].dtype))
    for each in data[1:]:
        each["label"] = tf.fill([8], tf.constant(1, each["label"].dtype))
    updates = train(window, data, 2)
    assert [bool(np.isnan(update["odd"])) for update in updates] == [True, False, False]
