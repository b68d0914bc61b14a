"""Explicit order between operations."""

import tensorflow as tf

from accumtrain.backprop.order import after


def test_none_stays_none():
    one, two = tf.constant(1.0), tf.constant(2.0)
    first, second, third = after([one], (two, None, one))
    assert (float(first), second, float(third)) == (2.0, None, 1.0)
    assert after([one], [None]) == [None]
