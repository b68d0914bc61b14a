"""`Accumulate`: what it refuses, and what the message says."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from accumtrain.keras import Accumulate

scaled = keras.optimizers.LossScaleOptimizer


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((keras.optimizers.SGD(), 0), "steps=0"),
        ((keras.optimizers.SGD(), True), "steps=True"),
        ((keras.optimizers.SGD(), 2.0), "steps=2.0"),
        ((keras.optimizers.SGD(), 2, "median"), "reduction='median' is not one of mean, sum"),
        ((Accumulate(keras.optimizers.SGD(), 2), 2), "accumulates already"),
        ((keras.optimizers.SGD(gradient_accumulation_steps=2), 2), "accumulates already"),
        ((scaled(keras.optimizers.SGD(gradient_accumulation_steps=2)), 2), "accumulates already"),
        ((scaled(Accumulate(keras.optimizers.SGD(), 2)), 2), "accumulates already"),
        ((3, 2), "Could not interpret optimizer"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_mistakes_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Accumulate(*arguments)


@pytest.mark.parametrize("ratio", [None, "0.1", -0.1, float("nan")], ids=str)
def test_an_adaptive_clip_is_a_number(ratio):
    with pytest.raises(ValueError, match="adaptive_clip="):
        Accumulate(keras.optimizers.SGD(), 2, adaptive_clip=ratio)


def test_other_variables_in_the_same_window_are_refused():
    optimizer = Accumulate(keras.optimizers.SGD(0.1), 2)
    variables = [keras.Variable([1.0]), keras.Variable([1.0])]
    optimizer.build(variables)
    optimizer.apply([tf.ones([1])], variables[:1])
    with pytest.raises(ValueError, match="other variables have gradients"):
        optimizer.apply([tf.ones([1])], variables[1:])


def test_gradients_of_nothing_are_refused():
    optimizer = Accumulate(keras.optimizers.SGD(0.1), 2)
    with pytest.raises(ValueError, match="has no variables yet: give apply"):
        optimizer.apply([tf.ones([1])])
    variable = keras.Variable([1.0])
    with pytest.raises(ValueError, match="no variable has a gradient"):
        optimizer.apply([None], [variable])
