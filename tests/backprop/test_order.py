"""Explicit order between operations."""

import tensorflow as tf

from accumtrain.backprop.tracing import after, computed_after


def test_none_stays_none():
    one, two = tf.constant(1.0), tf.constant(2.0)
    first, second, third = after([one], (two, None, one))
    assert (float(first), second, float(third)) == (2.0, None, 1.0)
    assert after([one], [None]) == [None]


def test_nothing_waits_for_none():
    @tf.function(autograph=False)
    def run(one, two):
        with computed_after([None, one], two) as two:
            three = after([(None, one)], two) + 1.0
        return after([None], three)

    assert float(run(tf.constant(1.0), tf.constant(2.0))) == 3.0
