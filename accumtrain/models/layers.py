"""Layers as plain functions over plain variables. Images are NHWC; a layer computes in the dtype of its input.

Kernels are initialised as in the RevNet authors' code (Gomez et al. 2017, renmengye/revnet-public): convolutions
truncated normal with variance 2 / (k * k * out), dense layers uniform with variance 1 / in. Every draw is a pure
function of (seed, order of creation), so all replicas and all resumed runs start from the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import tensorflow as tf

from accumtrain.models.mode import Mode

EPSILON = 1e-3
MOMENTUM = 0.9


class Initializer:
    """Draws initial values in order of creation.

    Args:
        seed: the run's seed.
        dtype: dtype of all variables, tf.float32 or tf.float64.
    """

    def __init__(self, seed: int, dtype: tf.DType = tf.float32):
        self.seed, self.dtype, self.drawn = seed, dtype, 0

    def _next_seed(self) -> list[int]:
        self.drawn += 1
        return [self.seed, self.drawn]

    def conv(self, shape: tuple[int, int, int, int]) -> tf.Variable:
        height, width, _, out = shape
        deviation = math.sqrt(2.0 / (height * width * out))
        value = tf.random.stateless_truncated_normal(shape, self._next_seed(), stddev=deviation)
        return tf.Variable(tf.cast(value, self.dtype), name="kernel")

    def dense(self, shape: tuple[int, int]) -> tf.Variable:
        bound = math.sqrt(3.0 / shape[0])
        value = tf.random.stateless_uniform(shape, self._next_seed(), -bound, bound)
        return tf.Variable(tf.cast(value, self.dtype), name="kernel")

    def constant(self, value: float, size: int, name: str, trainable: bool = True) -> tf.Variable:
        return tf.Variable(tf.fill([size], tf.cast(value, self.dtype)), name=name, trainable=trainable)


class Conv(tf.Module):
    """2-D convolution without bias, kernel [size, size, inputs, outputs]."""

    def __init__(self, init: Initializer, size: int, inputs: int, outputs: int, stride: int = 1, padding: str = "SAME"):
        super().__init__()
        self.stride, self.padding = stride, padding
        self.kernel = init.conv((size, size, inputs, outputs))

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def convolution(x: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, Callable]:
            return self.forward(x, kernel), lambda d_y: self.backward(d_y, x, kernel)

        return convolution(x, self.kernel_for(x))

    def kernel_for(self, x: tf.Tensor) -> tf.Tensor:
        """The kernel in the dtype of x."""
        return tf.cast(self.kernel, x.dtype)

    def forward(self, x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(x, kernel, self.stride, self.padding)

    def backward(self, d_y: tf.Tensor, x: tf.Tensor, kernel: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Gradients of x and of the kernel; x is done with before the gradient of x takes memory."""
        how = {"strides": [1, self.stride, self.stride, 1], "padding": self.padding}
        d_kernel = tf.raw_ops.Conv2DBackpropFilter(input=x, filter_sizes=kernel.shape, out_backprop=d_y, **how)
        with tf.control_dependencies([d_kernel]):
            d_x = tf.raw_ops.Conv2DBackpropInput(input_sizes=tf.shape(x), filter=kernel, out_backprop=d_y, **how)
        return d_x, d_kernel


class Dense(tf.Module):
    """x @ kernel + bias."""

    def __init__(self, init: Initializer, inputs: int, outputs: int):
        super().__init__()
        self.kernel = init.dense((inputs, outputs))
        self.bias = init.constant(0.0, outputs, "bias")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.matmul(x, tf.cast(self.kernel, x.dtype)) + tf.cast(self.bias, x.dtype)


class Bias(tf.Module):
    """Adds one value per channel."""

    def __init__(self, init: Initializer, channels: int):
        super().__init__()
        self.bias = init.constant(0.0, channels, "bias")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.bias_add(x, tf.cast(self.bias, x.dtype))


class BatchNorm(tf.Module):
    """Fused batch normalisation over N, H, W (Ioffe & Szegedy 2015, arXiv:1502.03167).

    In training the micro-batch is normalised by its own statistics, which are handed to `mode` and never written
    here: the window turns them into the moving statistics at its commit. The variance is the biased one.
    """

    def __init__(self, init: Initializer, channels: int):
        super().__init__()
        self.channels, self.momentum = channels, MOMENTUM
        self.gamma = init.constant(1.0, channels, "gamma")
        self.beta = init.constant(0.0, channels, "beta")
        self.moving_mean = init.constant(0.0, channels, "moving_mean", trainable=False)
        self.moving_variance = init.constant(1.0, channels, "moving_variance", trainable=False)

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        y, mean, variance, saved_mean, saved_variance, _ = tf.raw_ops.FusedBatchNormV3(
            x=x,
            scale=self.gamma,
            offset=self.beta,
            mean=tf.zeros([0]) if mode.training else self.moving_mean,
            variance=tf.zeros([0]) if mode.training else self.moving_variance,
            epsilon=EPSILON,
            is_training=mode.training,
        )
        if mode.recording:
            elements = tf.cast(tf.reduce_prod(tf.shape(x)[:3]), variance.dtype)
            unbiased_to_biased = tf.maximum(elements - 1.0, 1.0) / elements
            mode.record(self, mean, variance * unbiased_to_biased)
            if _on_cpu():
                mode.saved[self] = saved_mean, saved_variance
        return y

    def replays(self, mode: Mode) -> bool:
        """Can `forward` and `backward` take over the statistics of the recorded pass?"""
        return mode.replaying and self in mode.saved

    def forward(self, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, mode: Mode) -> tf.Tensor:
        """The output of the recorded pass, to the bit, without computing the statistics again."""
        mean, variance = mode.saved[self]
        return tf.raw_ops.FusedBatchNormV3(
            x=x, scale=gamma, offset=beta, mean=mean, variance=variance, epsilon=EPSILON, is_training=False
        ).y

    def backward(
        self, d_y: tf.Tensor, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, mode: Mode
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Gradients of x, gamma and beta, through the statistics too."""
        mean, variance = mode.saved[self]
        d_x, d_gamma, d_beta, *_ = tf.raw_ops.FusedBatchNormGradV3(
            y_backprop=d_y,
            x=x,
            scale=gamma,
            reserve_space_1=mean,
            reserve_space_2=variance,
            reserve_space_3=tf.zeros([0]),
            epsilon=EPSILON,
            is_training=True,
        )
        return d_x, d_gamma, d_beta


def _on_cpu() -> bool:
    """Elsewhere the fused kernels hand on other things than mean and variance."""
    return all(device.device_type == "CPU" for device in tf.config.list_logical_devices())


class GroupNorm(tf.Module):
    """Group normalisation (Wu & He 2018, arXiv:1803.08494) in groups of 8 channels, of each example alone."""

    def __init__(self, init: Initializer, channels: int):
        super().__init__()
        self.groups = channels // math.gcd(channels, 8)
        self.gamma = init.constant(1.0, channels, "gamma")
        self.beta = init.constant(0.0, channels, "beta")

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        return self.forward(x, self.gamma, self.beta, mode)

    def replays(self, mode: Mode) -> bool:
        return mode.replaying

    def forward(self, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, mode: Mode) -> tf.Tensor:
        height, width, channels = x.shape[1:]
        working = tf.cast(x, self.gamma.dtype)
        grouped = tf.reshape(working, [-1, height, width, self.groups, channels // self.groups])
        mean, variance = tf.nn.moments(grouped, axes=[1, 2, 4], keepdims=True)
        normed = tf.reshape((grouped - mean) * tf.math.rsqrt(variance + EPSILON), tf.shape(x))
        return tf.cast(normed * gamma + beta, x.dtype)

    def backward(
        self, d_y: tf.Tensor, x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, mode: Mode
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Gradients of x, gamma and beta."""
        with tf.GradientTape() as tape:
            tape.watch([x, gamma, beta])
            y = self.forward(x, gamma, beta, mode)
        return tuple(tape.gradient(y, [x, gamma, beta], d_y))


NORMS: dict[str, type[BatchNorm] | type[GroupNorm]] = {"batch": BatchNorm, "group": GroupNorm}
