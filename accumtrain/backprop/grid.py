"""The grid of multiples of 2^-bits, on which Keras layers are reversed to the bit (keras/reversible.py).

Sums of such numbers below 2^(24 - bits) are exact in float32, so that (a + b) - b gives the bits of a. The output of a
Keras layer must be floats; networks of accumtrain's own carry finer numbers in the same memory (fixed_point.py).
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from accumtrain.backprop.converted import Converted
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.pullback import Module


def snap(x: tf.Tensor, bits: int) -> tf.Tensor:
    """Rounds to multiples of 2^-bits, with the gradient of the identity. bits = 0 returns x."""
    if bits == 0:
        return x

    @tf.custom_gradient
    def rounded(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        wide = tf.cast(x, tf.float32) if x.dtype == tf.float16 else x  # x * 2^bits overflows in float16
        return tf.cast(tf.round(wide * 2.0**bits) / 2.0**bits, x.dtype), lambda upstream: upstream

    return rounded(x)


class OnGrid(Converted):
    """Rounds the output of `function` to the grid."""

    def __init__(self, function: Module, bits: int, dtype: tf.DType):
        super().__init__(function, dtype)
        self.bits = bits

    def converted(self, y: tf.Tensor, mode: Mode) -> tf.Tensor:
        return snap(tf.cast(y, self.dtype), self.bits)  # cast first, as rounding bfloat16 takes twice as long
