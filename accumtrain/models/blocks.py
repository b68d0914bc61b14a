"""The pre-activation residual functions and shortcuts that ResNets and RevNets are made of (He et al. 2016)."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from accumtrain.models.layers import NORMS, BatchNorm, Conv, GroupNorm, Initializer
from accumtrain.models.mode import Mode
from accumtrain.models.order import after


class Activated(tf.Module):
    """Norm and ReLU."""

    def __init__(self, init: Initializer, norm: str, channels: int):
        super().__init__()
        self.norm = NORMS[norm](init, channels)

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        return tf.nn.relu(self.norm(x, mode))


class Residual(tf.Module):
    """Two 3x3 convolutions, or 1x1, 3x3, 1x1 around a quarter of the channels, each behind norm and ReLU.

    Args:
        preactivated: False where the input has just been normalised by the stem (the first unit of the network).
        keep: a replay keeps what norm and ReLU give; else they are computed once more where it is differentiated.
    """

    def __init__(
        self,
        init: Initializer,
        norm: str,
        inputs: int,
        outputs: int,
        *,
        stride: int = 1,
        bottleneck: bool,
        preactivated: bool = True,
        keep: bool = True,
    ):
        super().__init__()
        self.keep = keep
        inner = outputs // 4 if bottleneck else outputs
        sizes = (1, 3, 1) if bottleneck else (3, 3)
        widths = (inputs, *[inner] * (len(sizes) - 1), outputs)
        self.activations, self.convs = [], []
        for i, size in enumerate(sizes):
            self.activations.append(Activated(init, norm, widths[i]) if i or preactivated else None)
            self.convs.append(Conv(init, size, widths[i], widths[i + 1], stride if i == 0 else 1))

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        for activation, conv in zip(self.activations, self.convs, strict=True):
            if activation is not None and activation.norm.replays(mode):
                x = _activated_again(activation.norm, conv, x, mode, self.keep)
            else:
                x = conv(x if activation is None else activation(x, mode))
        return x


def _activated_again(norm: BatchNorm | GroupNorm, conv: Conv, x: tf.Tensor, mode: Mode, keep: bool) -> tf.Tensor:
    """conv(relu(norm(x))) in a replay, with the statistics of the recorded pass."""

    @tf.custom_gradient
    def run(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        def activate(x: tf.Tensor) -> tf.Tensor:
            return tf.nn.relu(norm.forward(x, gamma, beta, mode))

        activated = activate(x)

        def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, ...]:
            a = activated if keep else activate(after([d_y], x))
            d_a, d_kernel = conv.backward(d_y, a, kernel)
            d_normed = tf.raw_ops.ReluGrad(gradients=d_a, features=a)
            return *norm.backward(d_normed, x, gamma, beta, mode), d_kernel

        return conv.forward(activated, kernel), backward

    gamma, beta = tf.convert_to_tensor(norm.gamma), tf.convert_to_tensor(norm.beta)
    return run(x, gamma, beta, conv.kernel_for(x))


class Projection(tf.Module):
    """1x1 convolution: the shortcut of bottleneck units that change shape."""

    def __init__(self, init: Initializer, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv = Conv(init, 1, inputs, outputs, stride)

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        return self.conv(x)


class PoolAndPad(tf.Module):
    """Average pooling and zero channels on both sides: the shortcut of basic units that change shape."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.stride = stride
        missing = outputs - inputs
        self.padding = (missing // 2, missing - missing // 2)

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        if self.stride > 1:
            x = tf.nn.avg_pool2d(x, self.stride, self.stride, "VALID")
        return tf.pad(x, [[0, 0], [0, 0], [0, 0], self.padding])


def shortcut(
    init: Initializer, inputs: int, outputs: int, stride: int, bottleneck: bool
) -> Projection | PoolAndPad | None:
    """The shortcut of a unit; None is the identity."""
    if inputs == outputs and stride == 1:
        return None
    return Projection(init, inputs, outputs, stride) if bottleneck else PoolAndPad(inputs, outputs, stride)


class Stem(tf.Module):
    """The first convolution with norm and ReLU: 3x3 (`cifar`), or 7x7/2 and 3x3/2 max-pooling (`imagenet`)."""

    def __init__(self, init: Initializer, norm: str, stem: str, channels: int, outputs: int):
        super().__init__()
        self.pooled = stem == "imagenet"
        self.conv = Conv(init, 7, channels, outputs, 2) if self.pooled else Conv(init, 3, channels, outputs)
        self.norm = NORMS[norm](init, outputs)

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        x = self.norm(self.conv(x), mode)
        if self.pooled:  # before ReLU, with which it commutes: a quarter of the values to rectify
            x = tf.nn.max_pool2d(x, 3, 2, "SAME")
        return tf.nn.relu(x)
