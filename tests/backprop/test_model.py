"""A chain of segments: which of them are frozen, and the loss inside the last one."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop import tape
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.model import Model
from accumtrain.backprop.segments import Chain
from accumtrain.models.layers import Dense, Initializer


class Layer(tf.Module):
    def __init__(self, init):
        super().__init__()
        self.dense = Dense(init, 3, 3)

    def __call__(self, x, mode):
        return tf.tanh(self.dense(x))


def three_segments():
    init = Initializer(1)
    return Model([Chain(memory, [Layer(init)]) for memory in ("recompute", "store", "store")])


@pytest.mark.parametrize(
    ("frozen", "expected"), [([], 0), ([0], 1), ([1], 0), ([0, 1], 2), ([0, 2], 1), ([1, 2], 0), ([2], 0)]
)
def test_the_segments_before_the_first_that_is_trained_are_frozen(frozen, expected):
    model = three_segments()
    model.freeze([f"segments/{place}/layers/0/dense/{name}" for place in frozen for name in ("kernel", "bias")])
    assert model.frozen_segments == expected
    assert len(model.trainable_variables) == 2 * (3 - len(frozen))
    assert gradients_of(model).keys() == {variable.ref() for variable in model.trainable_variables}


def gradients_of(model):
    """The gradients that the tape hands over, but of frozen variables."""
    found = {}

    def consume(pairs):
        found.update((variable.ref(), gradient) for variable, gradient in pairs)
        return []

    x = tf.random.stateless_normal([4, 3], [1, 2])
    tape.gradient(model, x, lambda logits: tf.reduce_sum(logits**2), Mode(training=True, recording=True), consume)
    trained = {variable.ref() for variable in model.trainable_variables}
    return {ref: gradient for ref, gradient in found.items() if ref in trained}


def test_the_loss_may_be_joined_to_the_last_segment():
    apart, joined = three_segments(), three_segments()
    joined.joins_loss = True
    pairs = list(zip(gradients_of(apart).values(), gradients_of(joined).values(), strict=True))
    assert len(pairs) == 6
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-6)
