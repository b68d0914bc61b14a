"""The promises of every kind of optimizer to the engine."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.optim.optimizer import Optimizer
from accumtrain.train.build import build_optimizer
from tests.optim.references import assert_same_path, train

pytestmark = pytest.mark.parametrize("kind", ["adam", "adamw", "sgd", "adafactor", "keras"])


def apply(optimizer: Optimizer, gradients: Iterable[tf.Tensor], step: int, *scale: tf.Tensor) -> None:
    step = tf.constant(step, tf.int64)
    optimizer.apply(list(gradients), optimizer.learning_rate(step), step, *scale)


def values(variables: list[tf.Variable]) -> list[np.ndarray]:
    return [variable.numpy() for variable in variables]


@pytest.mark.parametrize(("key", "argument"), [("lr", "learning_rate"), ("weight_decay", "weight_decay")])
def test_a_rate_or_decay_below_0_is_refused(kind, configs, key, argument):
    with pytest.raises(ValueError, match=rf"{argument}=-1.0: must be"):
        build_optimizer(replace(configs[kind], **{key: -1.0}))


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_state_is_made_once_in_the_dtype_of_the_weights(kind, configs, weights, gradients, dtype):
    optimizer = build_optimizer(configs[kind])
    assert optimizer.state == []
    train(optimizer, weights, gradients[:1], dtype)
    before = optimizer.state
    assert before
    assert {slot.dtype for slot in before} == {dtype}
    apply(optimizer, [tf.constant(value, dtype) for value in gradients[1]], 1)
    assert [id(slot) for slot in optimizer.state] == [id(slot) for slot in before]


def test_the_state_and_nothing_else_is_checkpointed(kind, configs, weights, gradients, tmp_path):
    """Stopped after 3 of 6 updates and restored: the same bits as 6 in one go."""
    straight = train(build_optimizer(configs[kind]), weights, gradients[:6])

    first = build_optimizer(configs[kind])
    halfway = train(first, weights, gradients[:3])
    path = tf.train.Checkpoint(optimizer=first).save(str(tmp_path / "ckpt"))
    saved = [key for key, _ in tf.train.list_variables(path) if key.startswith("optimizer/")]
    assert len(saved) == len(first.state)

    second = build_optimizer(configs[kind])
    tf.train.Checkpoint(optimizer=second).restore(path)  # deferred: the slots do not exist yet
    resumed = train(second, halfway, gradients[3:6], first_step=3)
    for got, want in zip(resumed, straight, strict=True):
        np.testing.assert_array_equal(got, want)


def test_an_update_not_taken_changes_no_bit(kind, configs, weights, gradients):
    optimizer = build_optimizer(configs[kind])
    variables = [tf.Variable(weight, dtype=tf.float32) for weight in weights]
    optimizer.build(variables, [True] * len(variables))

    @tf.function(autograph=False)
    def update(go: tf.Tensor, step: tf.Tensor, *gradients: tf.Tensor) -> None:
        def commit() -> tf.Tensor:
            optimizer.apply(gradients, optimizer.learning_rate(step), step)
            return step + 1

        tf.cond(go, commit, lambda: step)

    def run(go: bool, step: int) -> None:
        update(tf.constant(go), tf.constant(step, tf.int64), *[tf.constant(g, tf.float32) for g in gradients[step]])

    run(True, 1)
    before = values(variables), values(optimizer.state)
    run(False, 2)
    for kept, now in zip(before, (values(variables), values(optimizer.state)), strict=True):
        for old, new in zip(kept, now, strict=True):
            np.testing.assert_array_equal(new, old)
    run(True, 2)
    assert all((new != old).any() for old, new in zip(before[0], values(variables), strict=True))


def test_weight_decay_spares_variables_that_are_not_decayed(kind, configs, gradients):
    def after(weight_decay: float) -> list[np.ndarray]:
        optimizer = build_optimizer(replace(configs[kind], weight_decay=weight_decay))
        kernel, bias = tf.Variable(tf.ones((4, 6))), tf.Variable(tf.ones(5))
        optimizer.build([kernel, bias], [True, False])
        apply(optimizer, [tf.constant(gradients[1][place], tf.float32) for place in (2, 1)], 0)
        return values([kernel, bias])

    (kernel, bias), (decayed_kernel, same_bias) = after(0.0), after(0.5)
    np.testing.assert_array_equal(bias, same_bias)
    assert (kernel != decayed_kernel).any()


def test_the_scale_is_a_factor_on_the_gradients_of_any_dtype(kind, configs, gradients):
    def after(factor: float, scale: float) -> list[np.ndarray]:
        optimizer = build_optimizer(configs[kind])
        weights = [tf.Variable(tf.ones((4, 6), dtype)) for dtype in (tf.float32, tf.float64)]
        optimizer.build(weights, [True, True])
        found = [tf.constant(factor * gradients[1][2], weight.dtype) for weight in weights]
        apply(optimizer, found, 1, tf.constant(scale))
        return values([*weights, *optimizer.state])

    for found, expected in zip(after(4.0, 0.25), after(1.0, 1.0), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_decoupled_decay_is_rate_times_decay(kind, configs):
    optimizer = build_optimizer(replace(configs[kind], weight_decay=0.5))
    kernel = tf.Variable(tf.ones((4, 6)))
    optimizer.build([kernel], [True])
    optimizer.apply([tf.zeros((4, 6))], tf.constant(0.01), tf.constant(0, tf.int64))
    if optimizer.decoupled_decay:
        np.testing.assert_allclose(kernel, np.full((4, 6), 1 - 0.01 * 0.5), rtol=1e-6)
    else:
        assert kind in ("adam", "sgd")


@pytest.mark.slow
@pytest.mark.xla
def test_xla_computes_the_same(kind, configs, weights, gradients):
    plain = train(build_optimizer(configs[kind]), weights, gradients[:3])
    compiled = train(build_optimizer(configs[kind]), weights, gradients[:3], jit_compile=True)
    assert_same_path(compiled, plain, weights, rtol=1e-5)


def test_refuses_weights_in_low_precision(kind, configs):
    with pytest.raises(TypeError, match="kernel:0 is bfloat16"):
        build_optimizer(configs[kind]).build([tf.Variable(tf.zeros(3, tf.bfloat16), name="kernel")], [True])


def test_every_gradient_needs_its_variable(kind, configs):
    optimizer = build_optimizer(configs[kind])
    optimizer.build([tf.Variable(tf.zeros(3)), tf.Variable(tf.zeros(3))], [True, True])
    with pytest.raises(ValueError, match="zip"):
        optimizer.apply([tf.zeros(3)], tf.constant(0.1), tf.constant(0, tf.int64))
