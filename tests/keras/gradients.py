"""Gradients of Keras layers and models, and how tests compare them, and what must stay as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

# else the graph optimizer sums in another order where a graph is one piece
AS_WRITTEN = {"arithmetic_optimization": False, "constant_folding": False}
WAYS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda step: step,
    "graph": tf.function,
    "xla": lambda step: tf.function(step, jit_compile=True),
}


def gradients(model: Any, x: Any, way: str = "eager", training: bool = True) -> tuple[list[Any], list[Any]]:
    """Return loss, gradients of inputs and weights, and then the state afterwards, as arrays."""

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            inputs = [tensor for tensor in tf.nest.flatten(x) if tensor.dtype.is_floating]
            tape.watch(inputs)
            outputs = [y for y in tf.nest.flatten(model(x, training=training)) if y.dtype.is_floating]
            loss = tf.add_n([tf.reduce_sum(tf.cast(y, tf.float64) ** 2) for y in outputs])
            loss += sum(tf.cast(added, tf.float64) for added in model.losses)
        weights = [weight.value for weight in model.trainable_variables]
        return loss, [tf.convert_to_tensor(d) for d in tape.gradient(loss, [*inputs, *weights])]

    loss, found = WAYS[way](step)(x)
    state = [variable.numpy() for variable in model.non_trainable_variables]
    return [loss.numpy(), *(gradient.numpy() for gradient in found)], state


@contextmanager
def unchanged(variables: Iterable[Any]) -> Iterator[None]:
    """The block leaves all bits of the variables."""
    variables = list(variables)
    before = [variable.numpy() for variable in variables]
    yield
    assert_same_bits(before, [variable.numpy() for variable in variables])


def assert_same_bits(expected: Sequence[Any], actual: Sequence[Any]) -> None:
    assert len(expected) == len(actual)
    assert all(np.array_equal(a, b) for a, b in zip(expected, actual, strict=True))


def assert_same_gradients(
    make: Callable[[Any], Any], choices: tuple[Any, Any], x: Any, way: str = "eager"
) -> list[Any]:
    """Compare gradients and state of `make(choice)` to the bit. Return the gradients."""
    found = []
    for choice in choices:
        keras.utils.set_random_seed(1)
        found.append(gradients(make(choice), x, way))
    for expected, actual in zip(*found, strict=True):
        assert_same_bits(expected, actual)
    return found[0][0]


def assert_close_gradients(make: Callable[[Any], Any], choices: tuple[Any, Any], x: Any, way: str) -> None:
    """Compare gradients and state of `make(choice)` up to rounding."""
    (plain, plain_state), (other, state) = (gradients(make(choice), x, way) for choice in choices)
    for expected, actual in zip(plain + plain_state, other + state, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4 * np.max(np.abs(expected)))
