"""The gradients of a reversible unit whose functions compute in a lower precision than its streams."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.segments import Coupling


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
