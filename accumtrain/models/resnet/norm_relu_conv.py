"""Norm, ReLU and convolution: the layers of pre-activation residual functions (He et al. 2016, arXiv:1603.05027).

They read scaled streams and give values that are added to one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.pullback import Gradients, Pullback
from accumtrain.backprop.tracing import after
from accumtrain.models.layers import Conv, Initializer, Numerics
from accumtrain.models.norms import ALL, NORMS, Reread

# TensorFlow fuses batch norm with the ReLU behind it for multiples of 4 channels. The first pass has the statistics of
# a batch, a replay known ones. oneDNN's fused kernel gives the same bits for both for multiples of these channels only.
FUSED_BLOCK = 8


def rectify(x: tf.Tensor) -> tf.Tensor:
    """Return relu(x) for the output x [N, H, W, C] of a norm, with the same bits in a replay."""
    return tf.nn.relu(x) if x.shape[-1] % FUSED_BLOCK == 0 else tf.maximum(x, tf.zeros([], x.dtype))


class NormReLU(tf.Module):
    """The function relu(norm(x)), [N, H, W, C]."""

    def __init__(self, init: Initializer, norm: str, channels: int):
        super().__init__()
        self.norm = NORMS[norm](init, channels)

    def __call__(self, x: tf.Tensor, mode: Mode, factor: float = 1.0, low_peak: bool = False) -> tf.Tensor:
        return rectify(self.norm(x, mode, factor, low_peak))

    def pullback(
        self, x: tf.Tensor, mode: Mode, factor: float = 1.0, reread: Reread | None = None
    ) -> tuple[tf.Tensor, Callable]:
        """Return y and the function from (d_y, y) to the gradients. It takes y, so that y need not be kept for it."""
        normed, norm_backward = self.norm.pullback(x, mode, factor, reread)

        def backward(d_y: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
            return norm_backward(tf.raw_ops.ReluGrad(gradients=d_y, features=y))

        return rectify(normed), backward


@dataclass(frozen=True)
class NormReLUConv:
    """The function conv(relu(norm(x))), or conv(x) without an activation.

    Values read from a stream have a factor, which the norm or else the convolution takes along. Values added to a
    stream get it from the kernel.

    Attributes:
        keep_activation: False lets a replay compute it once more for its gradient.
        keep_output: keeps the output of the convolution for the replay.
        low_peak: the gradient of the norm takes less memory at its peak, and longer.
    """

    activation: NormReLU | None
    conv: Conv
    numerics: Numerics
    keep_activation: bool = True
    keep_output: bool = False
    low_peak: bool = False

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        x_factor, factor = self.numerics.factors(x, mode)
        x = self.numerics.reads.for_mode(mode).differentiable_read(x, self.numerics.dtype(x), x_factor)
        if self.activation is None:
            return self.conv(x, factor / x_factor)
        return self.conv(self.activation(x, mode, x_factor, self.low_peak), factor)

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        activate_again = mode.replaying and not self.keep_activation
        x_factor, factor = self.numerics.factors(x, mode)
        activated_factor = x_factor if self.activation is None else 1.0
        activated, activation_backward = self._activate(x, mode)
        saved = mode.saved_for_replay(self.conv)
        known = None if saved is None else after([activated], saved)
        y, conv_backward = self.conv.pullback(activated, mode, known, activated_factor, factor / activated_factor)
        if self.keep_output and mode.recording:
            mode.saved[self.conv] = y

        def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
            a, a_backward = activated, activation_backward
            if activate_again:  # from x, which is in memory anyway, so that the cast input is not kept either
                a, a_backward = self._activate(after([d_y], x), mode)
            d_a, kernel_gradients = conv_backward(d_y, a)
            d_x, norm_gradients = a_backward(d_a, a)
            return d_x, kernel_gradients + norm_gradients

        return y, backward

    def _activate(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Callable]:
        """Return the activation, and its gradient, for which a replay reads the values of a stream again."""
        numbers, dtype = self.numerics.reads.for_mode(mode), self.numerics.dtype(x)
        x_factor, _ = self.numerics.factors(x, mode)
        values = numbers.read(x, dtype, x_factor)
        if self.activation is None:
            return values, lambda d_y, _: (d_y, [])
        read_again = mode.replaying and numbers.bits > 0
        if not read_again and not self.low_peak:
            return self.activation.pullback(values, mode, x_factor)

        def read(when: Sequence[tf.Tensor], images: slice = ALL) -> tf.Tensor:
            if read_again:
                return numbers.read(after(when, x)[images], dtype, x_factor)
            return after(when, values)[images]

        return self.activation.pullback(values, mode, x_factor, Reread(read, self.low_peak))
