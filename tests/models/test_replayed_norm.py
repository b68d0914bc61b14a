"""A replay of normalisation, ReLU and convolution in a compiled graph has the bits of the recorded pass."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.tracing import after
from accumtrain.engine.compiled_function import FUSION_ONLY, CompiledFunction
from accumtrain.models.blocks import Residual
from accumtrain.models.layers import Initializer


@pytest.mark.parametrize("channels", [1, 2, 4, 6, 8, 12, 16, 20, 24])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_a_replay_has_the_same_bits_whatever_the_number_of_channels(channels, dtype):
    """oneDNN fuses normalisation and ReLU, in kernels that are not the same in both passes."""
    residual = Residual(Initializer(0), "batch", channels, channels, bottleneck=False)
    for number, variable in enumerate(residual.trainable_variables):  # a scale of 1 would hide another rounding
        variable.assign_add(0.3 * tf.random.stateless_normal(variable.shape, [1, number]))

    def both(x):
        mode = Mode(training=True, recording=True)
        y, _ = residual.pullback(x, mode)
        again, backward = residual.pullback(after([y], x), mode.replay())
        d_x, gradients = backward(y)  # which keeps the convolutions from being fused, too
        return y, again, d_x, [gradient for _, gradient in gradients]

    x = tf.cast(2.0 * tf.random.stateless_normal([8, 8, 8, channels], [3, 4]) + 0.5, dtype)
    recorded, replayed, *_ = CompiledFunction(both, FUSION_ONLY)(x)
    np.testing.assert_array_equal(tf.cast(recorded, tf.float32), tf.cast(replayed, tf.float32))
