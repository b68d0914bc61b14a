"""The grid of the streams: exact in every dtype, with the gradient of the identity."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.keras.layers import SnapToGrid, snap_to_grid


@pytest.mark.parametrize(
    ("dtype", "bits", "given", "expected"),
    [
        (tf.float32, 2, [0.3, -0.3, 0.375, 5.0], [0.25, -0.25, 0.5, 5.0]),  # a half goes to the even neighbour
        (tf.float16, 12, [100.0, 0.25], [100.0, 0.25]),  # 100 * 2^12 is beyond float16
        (tf.float64, 40, [1.0 + 2.0**-40], [1.0 + 2.0**-40]),  # and this beyond float32
        (tf.float32, 0, [0.3], [0.3]),
    ],
)
def test_values_are_rounded_to_the_grid_and_keep_their_gradient(dtype, bits, given, expected):
    x = tf.constant(given, dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = snap_to_grid(x, bits)
    np.testing.assert_array_equal(y, tf.constant(expected, dtype))
    np.testing.assert_array_equal(tape.gradient(y, x, 3.0 * tf.ones_like(y)), 3.0 * tf.ones_like(x))


class InBfloat16:
    """x * 1.5, and its gradient, in bfloat16."""

    def __call__(self, x, mode):
        return tf.cast(x, tf.bfloat16) * 1.5

    def pullback(self, x, mode):
        return self(x, mode), lambda d_y: (d_y * 1.5, [])


def test_streams_and_their_gradients_have_their_own_dtype_whatever_a_function_computes_in():
    on_grid = SnapToGrid(InBfloat16(), 4, tf.float32)
    x = tf.constant([1.0, 0.3])
    mode = Mode(training=True)
    y, backward = on_grid.pullback(x, mode)
    d_x, gradients = backward(tf.constant([1.0, 2.0]))
    assert (y.dtype, d_x.dtype, gradients) == (tf.float32, tf.float32, [])
    np.testing.assert_array_equal(y, [1.5, 0.4375])
    np.testing.assert_array_equal(on_grid(x, mode), y)
    np.testing.assert_array_equal(d_x, [1.5, 3.0])
