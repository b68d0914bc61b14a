"""A chain of segments: which are frozen, the loss inside the last one, and the gradients of a reversible unit."""

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop import tape
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.model import Model
from accumtrain.backprop.segments import Chain, Coupling
from accumtrain.models.layers import Dense, Initializer

EXAMPLES = tf.random.stateless_normal([4, 3], [1, 2])


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
    found, mode = [], Mode(training=True, recording=True)
    tape.gradient(
        model, EXAMPLES, lambda logits: tf.reduce_sum(logits**2), mode, lambda pairs: found.extend(pairs) or []
    )
    trained = {variable.ref() for variable in model.trainable_variables}
    return {variable.ref(): gradient for variable, gradient in found if variable.ref() in trained}


class Split(Layer):
    """Two streams; the second is an integer, or a float that the next segment makes one of."""

    def __init__(self, init, integer):
        super().__init__(init)
        self.integer = integer

    def __call__(self, x, mode):
        y = super().__call__(x, mode)
        return (y, tf.cast(4.0 * y, tf.int32) if self.integer else 4.0 * y)


class Join(Layer):
    """Take whole numbers of the second stream, and of the first if there is no other."""

    def __init__(self, init, both):
        super().__init__(init)
        self.both = both

    def __call__(self, x, mode):
        whole = tf.cast(tf.cast(x[1], tf.int32), tf.float32)
        return super().__call__(x[0] * whole if self.both else whole, mode)


@pytest.mark.parametrize("memory", ["store", "recompute"])
@pytest.mark.parametrize("integer", [True, False])
@pytest.mark.parametrize("both", [True, False])
def test_a_stream_without_gradient_is_a_cut_point(memory, integer, both):
    init = Initializer(1)
    layers = [Layer(init), Split(init, integer), Join(init, both), Layer(init)]
    model = Model([Chain(memory, [layer]) for layer in layers])
    found = tf.function(gradients_of, autograph=False)(model)
    with tf.GradientTape() as plain:
        loss = tf.reduce_sum(model(EXAMPLES, Mode(training=True)) ** 2)
    expected = plain.gradient(loss, model.trainable_variables)
    assert sum(each is None for each in expected) == (0 if both else 4)
    for variable, gradient in zip(model.trainable_variables, expected, strict=True):
        if gradient is None:
            assert found.get(variable.ref()) is None
        else:
            np.testing.assert_allclose(found[variable.ref()], gradient, rtol=1e-5, atol=1e-6)


def test_the_loss_may_be_joined_to_the_last_segment():
    apart, joined = three_segments(), three_segments()
    joined.joins_loss = True
    pairs = list(zip(gradients_of(apart).values(), gradients_of(joined).values(), strict=True))
    assert len(pairs) == 6
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-6)


class WithGradient(tf.Module):
    """A function of 0, whose gradient is the same number for every input."""

    def __init__(self, gradient, dtype=tf.float32):
        super().__init__()
        self.gradient = tf.fill([1, 2], tf.constant(gradient, dtype))

    def __call__(self, x, mode):
        return tf.zeros_like(x)

    def pullback(self, x, mode):
        return self(x, mode), lambda d_y: (self.gradient, [])


def test_the_gradient_of_a_stream_has_its_precision_where_f_has_a_lower_one():
    """1 + 2^-20 is no number of bfloat16."""
    f, g = WithGradient(0.5, tf.bfloat16), WithGradient(0.0)
    unit = Coupling(f, g, shortcuts=(WithGradient(3.0), WithGradient(1 + 2.0**-20)))
    streams = tf.zeros([1, 2]), tf.zeros([1, 2])
    _, backward = unit.pullback(streams, Mode(training=True))
    d_streams, _ = backward((tf.ones([1, 2]), tf.ones([1, 2])))
    for found, expected in zip(d_streams, (3.0, 1.5 + 2.0**-20), strict=True):
        assert found.dtype == tf.float32
        np.testing.assert_array_equal(found, np.full([1, 2], expected, np.float32))
