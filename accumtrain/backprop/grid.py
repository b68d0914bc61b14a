"""The grid of multiples of 2^-bits, on which Keras layers are reversed to the bit (keras/reversible.py).

Sums of such numbers below 2^(24 - bits) are exact in float32, so that (a + b) - b gives the bits of a. The output of a
Keras layer must be floats; networks of accumtrain's own carry finer numbers in the same memory (fixed_point.py).
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.pullback import Gradients, Pullback, pullback


def snap(x: tf.Tensor, bits: int) -> tf.Tensor:
    """Rounds to multiples of 2^-bits, with the gradient of the identity. bits = 0 returns x."""
    if bits == 0:
        return x

    @tf.custom_gradient
    def rounded(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return _rounded(x, bits), lambda upstream: upstream

    return rounded(x)


def _rounded(x: tf.Tensor, bits: int) -> tf.Tensor:
    if bits == 0:
        return x
    wide = tf.cast(x, tf.float32) if x.dtype == tf.float16 else x  # x * 2^bits overflows in float16
    return tf.cast(tf.round(wide * 2.0**bits) / 2.0**bits, x.dtype)


class OnGrid(tf.Module):
    """Rounds the output of `function` to the grid. Output and input gradient have `dtype`, whatever it computes in."""

    def __init__(self, function: Callable[[tf.Tensor, Mode], tf.Tensor], bits: int, dtype: tf.DType):
        super().__init__()
        self.function, self.bits, self.dtype = function, bits, dtype

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        with tf.control_dependencies([x]):  # or the kernels of all units are cast, and kept, from the start
            # cast first, as rounding bfloat16 takes twice as long
            return snap(tf.cast(self.function(x, mode), self.dtype), self.bits)

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        with tf.control_dependencies([x]):
            y, function_backward = pullback(self.function, x, mode)

            def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
                d_x, gradients = function_backward(tf.cast(d_y, y.dtype))
                return tf.cast(d_x, self.dtype), gradients

            return _rounded(tf.cast(y, self.dtype), self.bits), backward
