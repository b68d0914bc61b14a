"""Every optimizer of keras.optimizers behind the adapter, against Keras's own `apply`."""

import inspect
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from accumtrain.errors import ConfigError
from accumtrain.optim.config import KerasOptimConfig
from accumtrain.optim.keras_optimizer import update_rules
from accumtrain.train.build import build_optimizer
from tests.optim.references import assert_same_path, state_size, train

CLASSES = sorted(update_rules())
MUON = [name for name in CLASSES if name == "Muon"]  # not with the Keras of Python 3.10
SCHEDULE_FREE = [name for name in CLASSES if name == "ScheduleFreeAdamW"]  # likewise
LR = 0.01


def config(name: str, **args: object) -> KerasOptimConfig:
    return KerasOptimConfig(lr=LR, weight_decay=0.0, name=name, args=dict(args))


def keras_apply(
    name: str,
    weights: list[np.ndarray],
    gradients: list[list[np.ndarray]],
    rates: list[float],
    decay: float,
    **args: object,
) -> list[np.ndarray]:
    """Keras's own updates; its weight decay is for kernels, as accumtrain has it."""
    signature = inspect.signature(getattr(keras.optimizers, name)).parameters
    decays = {key: decay for key in ("weight_decay", "adam_weight_decay") if key in signature}
    optimizer = getattr(keras.optimizers, name)(**decays, **args)
    variables = [keras.Variable(weight, dtype="float32", name=f"w{i}") for i, weight in enumerate(weights)]
    optimizer.exclude_from_weight_decay([v for v in variables if v.ndim < 2])
    for values, rate in zip(gradients, rates, strict=True):
        optimizer.learning_rate = rate
        optimizer.apply([tf.constant(value, tf.float32) for value in values], variables)
    return [variable.numpy() for variable in variables]


def test_there_are_optimizers_to_test():
    assert {"Adam", "AdamW", "Lion", "Nadam", "SGD"} <= set(CLASSES)


@pytest.mark.parametrize(
    ("name", "decay", "args"),
    [
        *((name, 0.0, {}) for name in CLASSES),
        *((name, 0.5, {}) for name in ("AdamW", "SGD", "Lamb", *MUON)),
        ("SGD", 0.0, {"momentum": 0.5, "nesterov": True}),
    ],
)
def test_agrees_with_keras(name, decay, args, weights, gradients, rates):
    series = [[value + 0.01 for value in values] for values in gradients[:4]]  # Keras's Adafactor makes zeros NaN
    got = train(build_optimizer(replace(config(name, **args), weight_decay=decay)), weights, series)
    assert_same_path(got, keras_apply(name, weights, series, rates[:4], decay, **args), weights, rtol=1e-5)


def test_updates_follow_the_schedule(weights, gradients):
    half = train(build_optimizer(config("SGD")), [np.zeros(5)], [[gradients[1][1]]], schedule=lambda step: 0.5)
    np.testing.assert_allclose(half[0], -0.5 * LR * gradients[1][1], rtol=1e-6)


@pytest.mark.parametrize(("name", "copies"), [("SGD", 0), ("Lion", 1), ("RMSprop", 1), ("Adam", 2)])
def test_state_is_keras_slots_and_no_copy_of_the_weights(name, copies):
    optimizer = build_optimizer(config(name))
    optimizer.build([tf.Variable(tf.zeros((50, 40))), tf.Variable(tf.zeros(40))], [True, False])
    assert state_size(optimizer) == copies * (50 * 40 + 40)


@pytest.mark.parametrize("name", MUON)
def test_muon_sees_the_names_of_the_weights(name):
    """Muon gives embeddings Adam's two slots, other matrices one."""
    optimizer = build_optimizer(config(name))
    names = ["embedding/table", "dense/kernel"]
    optimizer.build([tf.Variable(tf.zeros((3, 4)), name=name) for name in names], [True, True])
    assert len(optimizer.state) == 2 + 1


@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("lion", {}, "did you mean Lion"),
        ("Adamm", {}, "did you mean"),
        ("Shampoo", {}, "choose from Adadelta, "),
        ("Optimizer", {}, "choose from|did you mean"),
        ("LossScaleOptimizer", {}, "optim.name=LossScaleOptimizer is not"),
        ("MultiOptimizer", {}, "optim.name=MultiOptimizer is not"),
        ("schedules", {}, "optim.name=schedules is not"),
        ("Lion", {"learning_rate": 0.1}, "set optim.lr"),
        ("Lion", {"weight_decay": 0.1}, "set optim.weight_decay"),
        ("Lion", {"clipnorm": 1.0}, "set optim.clip_norm"),
        ("Lion", {"global_clipnorm": 1.0}, "set optim.clip_norm"),
        ("Lion", {"clipvalue": 1.0}, "set optim.clip_norm"),
        ("Lion", {"use_ema": True}, "set ema.decay"),
        ("Lion", {"gradient_accumulation_steps": 4}, "set accum.steps"),
        ("Lion", {"loss_scale_factor": 2.0}, "leave it out"),
        ("Lion", {"beta_3": 0.9}, "Lion has only beta_1, beta_2, name"),
    ],
)
def test_unknown_names_and_args_that_are_not_for_keras_are_refused(name, args, says):
    with pytest.raises(ConfigError, match=says):
        build_optimizer(config(name, **args))


def test_values_that_keras_refuses():
    optimizer = build_optimizer(config("SGD", momentum=2.0))
    with pytest.raises(ConfigError, match=r"keras.optimizers.SGD refuses"):
        optimizer.build([tf.Variable(tf.zeros(3))], [True])


@pytest.mark.parametrize("name", SCHEDULE_FREE)
def test_schedule_free_weights_are_the_average_of_its_points(name, weights, gradients):
    """So they are what is evaluated. The points are those of Adam without momentum, here in float64 NumPy.

    By the paper (arXiv:2405.15682) gradients are taken a little away from the average. Keras with TensorFlow takes them
    at the average itself, as it reads a slot after the slot has changed.
    """
    got = train(build_optimizer(config(name)), weights, gradients[1:5], schedule=lambda step: 1.0)
    for place, (weight, start) in enumerate(zip(got, weights, strict=True)):
        point, square, points = np.asarray(start, np.float64), 0.0, []
        for t, series in enumerate(gradients[1:5], start=1):
            square = 0.999 * square + 0.001 * np.square(series[place])
            point = point - LR * series[place] / (np.sqrt(square / (1 - 0.999**t)) + 1e-8)
            points.append(point)
        np.testing.assert_allclose(weight, np.mean(points, axis=0), rtol=1e-5, atol=1e-7)


def test_what_keeps_a_copy_of_the_weights():
    """Its slots must be built on the weights to begin with, after these are loaded."""
    start = tf.constant([[0.25, -3.0], [7.0, 0.5]])

    def copies(name):
        optimizer = build_optimizer(config(name))
        optimizer.build([tf.Variable(start, name="dense/kernel")], [True])
        return [slot for slot in optimizer.state if slot.shape == start.shape and np.array_equal(slot, start)]

    assert [name for name in CLASSES if copies(name)] == SCHEDULE_FREE
