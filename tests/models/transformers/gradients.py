"""Gradients of a model by its own back-propagation, and what they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop import tape
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.model import Model
from accumtrain.backprop.pullback import Gradients


def loss_of(logits: Any) -> Any:
    return tf.reduce_sum(
        tf.cast(logits, tf.float64) * tf.random.stateless_normal(logits.shape, [5, 6], dtype=tf.float64)
    )


def gradients_of(model: Model, inputs: Any, loss: Callable[[Any], Any] = loss_of) -> tuple[Any, list[Any]]:
    """The gradient of each variable, in the order of `trainable_variables`, by the model's own back-propagation."""
    found: dict[Any, Any] = {}

    @tf.function(autograph=False)
    def run() -> tuple[Any, list[Any]]:
        def consume(gradients: Gradients) -> list[Any]:
            for variable, gradient in gradients:
                if gradient is not None:
                    dense = tf.convert_to_tensor(gradient)
                    found[variable.ref()] = found[variable.ref()] + dense if variable.ref() in found else dense
            return []

        mode = Mode(
            training=True, recording=True, draws=lambda number: tf.constant([0.03, 0.9, 0.2, 0.6]) + number / 99
        )
        value, _ = tape.gradient(model, inputs, lambda logits: tf.cast(loss(logits), logits.dtype), mode, consume)
        return value, [found[variable.ref()] for variable in model.trainable_variables]

    return run()


def assert_gradients_are_of(model: Model, inputs: Any, plain: Callable[[], Any]) -> None:
    """Logits and gradients of a model in float64 are those of `plain`, a function of its variables."""
    with tf.GradientTape() as tape_of_plain:
        logits = plain()
        value = loss_of(logits)
    np.testing.assert_allclose(model(inputs), logits, rtol=0, atol=1e-12)
    expected = tape_of_plain.gradient(value, model.trainable_variables)
    for gradient, wanted in zip(gradients_of(model, inputs)[1], expected, strict=True):
        wanted = tf.convert_to_tensor(wanted)
        np.testing.assert_allclose(gradient, wanted, rtol=0, atol=1e-11 * max(1, np.abs(wanted).max()))


def assert_same_bits(found: tuple[Any, list[Any]], wanted: tuple[Any, list[Any]]) -> None:
    """Two answers of `gradients_of` have the same loss and gradients."""
    assert found[0] == wanted[0]
    for own, other in zip(found[1], wanted[1], strict=True):
        np.testing.assert_array_equal(own, other)


def fast_and_slow(fast: Iterable[tuple], slow: Iterable[tuple]) -> list[Any]:
    """The cases, of which those that are not fast are marked slow."""
    return [*fast, *(pytest.param(*case, marks=pytest.mark.slow) for case in slow if case not in fast)]
