"""Batch norm and group norm over plain variables. Images are NHWC; a norm computes in the dtype of its input."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import tensorflow as tf

from accumtrain.backprop.fixed_point import times
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.pullback import Gradients, Pullback, tape_pullback
from accumtrain.backprop.tracing import after, by_cpu_kernels, on_gpu
from accumtrain.models.layers import Initializer
from accumtrain.process.private import could_possibly_record

EPSILON = 1e-3
MOMENTUM = 0.9
PARTS = 8  # of a gradient with a low peak
ALL = slice(None)  # images
Pair = tuple[tf.Tensor, tf.Tensor]  # gamma and beta, or mean and variance
ONEDNN_BLOCK = 16  # channels that oneDNN's bfloat16 kernels process at once


@dataclass(frozen=True)
class Reread:
    """A way to read the input of a norm again for its gradient, so that it need not be kept.

    Attributes:
        read: a function of tensors that it waits for, and of a slice of the images, all by default.
        low_peak: memory peaks with the gradient, which may take longer then.
    """

    read: Callable[..., tf.Tensor]
    low_peak: bool


def norm_gradient(
    reread: Reread, d_y: tf.Tensor, gamma: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor, epsilon: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the gradients of x, gamma and beta, for x and d_y [N, H, W, C] of float32, with the biased variance of x.

    Both sums over all pixels are formed in PARTS parts. Then d_x takes the place of d_y, so only x is in memory beside
    it. TensorFlow's operation has all three. This takes nearly twice as long.
    """
    count = d_y.shape[0] or tf.shape(d_y)[0]
    bounds = [count * part // PARTS for part in range(PARTS + 1)]
    inverse = tf.math.rsqrt(variance + epsilon)
    d_beta, d_gamma = tf.zeros_like(mean), tf.zeros_like(mean)
    for first, last in pairwise(bounds):
        images = slice(first, last)
        part = d_y[images]
        centred = reread.read([part, d_beta, d_gamma], images) - mean
        d_beta += tf.reduce_sum(part, [0, 1, 2])
        d_gamma += tf.reduce_sum(centred * part, [0, 1, 2]) * inverse
    pixels = tf.cast(tf.reduce_prod(tf.shape(d_y)[:3]), mean.dtype)
    scale = gamma * inverse
    slope = scale * inverse * d_gamma / pixels
    offset = scale * d_beta / pixels - slope * mean
    # a difference, as the graph optimizer merges sums of sums, in each graph in another order
    return scale * d_y - (slope * reread.read([d_gamma, d_beta]) + offset), d_gamma, d_beta


class BatchNorm(tf.Module):
    """Fused batch normalisation over N, H, W (Ioffe & Szegedy 2015, arXiv:1502.03167), in float64 by plain operations.

    In training the micro-batch is normalised by its own statistics, with the biased variance. They are handed to `mode`
    and never written here: the window turns them into the moving statistics at its commit. A frozen one normalises by
    its moving statistics in training, too.

    In training x may be a multiple by `factor`, a power of two. The fused operation then needs no further pass over x,
    only another epsilon. Gradients are those for x / factor.
    """

    def __init__(self, init: Initializer, channels: int):
        super().__init__()
        self.channels, self.momentum, self.frozen = channels, MOMENTUM, False
        self.gamma = init.constant(1.0, channels, "gamma")
        self.beta = init.constant(0.0, channels, "beta")
        self.moving_mean = init.constant(0.0, channels, "moving_mean", trainable=False)
        self.moving_variance = init.constant(1.0, channels, "moving_variance", trainable=False)

    def __call__(self, x: tf.Tensor, mode: Mode, factor: float = 1.0, low_peak: bool = False) -> tf.Tensor:
        """Normalise x. With `low_peak`, a tf.GradientTape gives the bits of a `pullback` with a low peak."""
        if mode.training and self.frozen:
            return self._by_constants(times(x, 1.0 / factor))
        if low_peak and mode.training and self._in_parts(x) and could_possibly_record():
            return self._with_gradient_in_parts(x, mode, factor)
        known = None if mode.training else (self.moving_mean, self.moving_variance)
        return self._normalise(x, (self.gamma, self.beta), mode, known, factor)[0]

    def pullback(
        self, x: tf.Tensor, mode: Mode, factor: float = 1.0, reread: Reread | None = None
    ) -> tuple[tf.Tensor, Pullback]:
        """Return y and its pullback, through the batch statistics too. A replay uses the saved ones, for the same bits.

        Args:
            reread: reads x again for its gradient; None keeps it.
        """
        in_parts = reread is not None and reread.low_peak and self._in_parts(x)
        if self.frozen or (x.dtype == tf.float64 and not in_parts):
            return tape_pullback(self, times(x, 1.0 / factor), mode)
        gamma = tf.convert_to_tensor(self.gamma)
        y, reserved = self._normalise(x, (gamma, self.beta), mode, mode.saved_for_replay(self), factor)

        def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
            if reread is not None and in_parts:
                d_x, d_gamma, d_beta = self._gradient_in_parts(reread, d_y, gamma, reserved, factor)
            else:
                d_x, d_gamma, d_beta, *_ = tf.raw_ops.FusedBatchNormGradV3(
                    y_backprop=self._widen(d_y),
                    x=self._widen(x, d_y) if reread is None else self._widen(reread.read([d_y])),
                    scale=times(gamma, factor),
                    reserve_space_1=reserved[0],
                    reserve_space_2=reserved[1],
                    reserve_space_3=reserved[2],
                    epsilon=EPSILON * factor**2,
                    is_training=True,
                )
            return tf.cast(d_x, x.dtype), [(self.gamma, d_gamma), (self.beta, d_beta)]

        return y, backward

    def _with_gradient_in_parts(self, x: tf.Tensor, mode: Mode, factor: float) -> tf.Tensor:
        @tf.custom_gradient
        def normalised(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tuple[tf.Tensor, Callable]:
            y, reserved = self._normalise(x, (gamma, beta), mode, None, factor)

            def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
                reread = Reread(lambda when, images=ALL: after(when, x)[images], low_peak=True)
                d_x, *others = self._gradient_in_parts(reread, d_y, gamma, reserved, factor)
                return times(d_x, 1.0 / factor), *others

            return y, backward

        return normalised(x, tf.convert_to_tensor(self.gamma), tf.convert_to_tensor(self.beta))

    def _gradient_in_parts(
        self, reread: Reread, d_y: tf.Tensor, gamma: tf.Tensor, reserved: Sequence[tf.Tensor], factor: float
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        mean, variance, *_ = reserved
        return norm_gradient(reread, d_y, times(gamma, factor), mean, variance, EPSILON * factor**2)

    def _in_parts(self, x: tf.Tensor) -> bool:
        """Return whether the gradient of x can be computed in parts."""
        return x.dtype in (tf.float32, tf.float64) and by_cpu_kernels()

    def _by_constants(self, x: tf.Tensor) -> tf.Tensor:
        """Normalise by the moving statistics, in plain operations.

        Grappler merges the fused one into a convolution in some graphs and not in others, with other bits.
        """
        scale = tf.stop_gradient(self.gamma * tf.math.rsqrt(self.moving_variance + EPSILON))
        working = tf.cast(x, scale.dtype) - tf.stop_gradient(self.moving_mean)
        return tf.cast(working * scale + tf.stop_gradient(self.beta), x.dtype)

    def _widen(self, x: tf.Tensor, when: tf.Tensor | None = None) -> tf.Tensor:
        """Cast bfloat16 to float32, after `when`, if the number of channels makes oneDNN's bfloat16 kernel slow."""
        if x.dtype != tf.bfloat16 or self.channels % ONEDNN_BLOCK == 0 or not by_cpu_kernels():
            return x
        return tf.cast(x if when is None else after([when], x), tf.float32)

    def _normalise(
        self, x: tf.Tensor, affine: Pair, mode: Mode, known: Pair | None, factor: float
    ) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        """Normalise by the known mean and variance or by those of x, which is a multiple of `factor`.

        Returns:
            The output, and the tensors that its gradient needs.
        """
        in_float64 = x.dtype == tf.float64
        normalise = self._in_float64 if in_float64 else self._fused
        y, mean, variance, *reserved = normalise(x, affine, known, EPSILON * factor**2)
        if known is None and mode.recording:
            biased = variance if in_float64 else variance * _unbiased_to_biased(x, variance.dtype, mode)
            mode.record(self, times(mean, 1.0 / factor), times(biased, factor**-2))
            if in_float64 or not on_gpu():  # a GPU's fused kernels return other tensors than mean and variance
                mode.saved[self] = reserved[0], reserved[1]
        return y, reserved

    def _fused(self, x: tf.Tensor, affine: Pair, known: Pair | None, epsilon: float) -> Sequence[tf.Tensor]:
        """Return the output, mean, unbiased variance, and the tensors for the gradient, by TensorFlow's operation."""
        empty = tf.zeros([0])
        y, mean, variance, *reserved = tf.raw_ops.FusedBatchNormV3(
            x=self._widen(x),
            scale=affine[0],
            offset=affine[1],
            mean=empty if known is None else known[0],
            variance=empty if known is None else known[1],
            epsilon=epsilon,
            is_training=known is None,
        )
        y = tf.cast(y, x.dtype)
        if known is not None:
            return y, *known, *known, empty
        return y, mean, variance, *reserved

    def _in_float64(self, x: tf.Tensor, affine: Pair, known: Pair | None, epsilon: float) -> Sequence[tf.Tensor]:
        """Do as `_fused`, but with the biased variance, in plain operations, as the fused one has no float64."""
        mean, variance = tf.nn.moments(x, [0, 1, 2]) if known is None else known
        gamma, beta = affine
        y = tf.nn.batch_normalization(x, mean, variance, beta, gamma, epsilon)
        return y, mean, variance, mean, variance


def _unbiased_to_biased(x: tf.Tensor, dtype: tf.DType, mode: Mode) -> tf.Tensor | np.floating:
    """Return (n - 1) / n for the n values of a channel: a number if the shape is static, else one tensor a size."""
    known = x.shape[:3].num_elements()
    if known is not None:
        elements = dtype.as_numpy_dtype(known)
        return np.maximum(elements - 1, 1) / elements
    _, height, width, _ = x.shape
    size = height, width, dtype
    if size not in mode.variance_factors:
        elements = tf.cast(tf.reduce_prod(tf.shape(x)[:3]), dtype)
        mode.variance_factors[size] = tf.maximum(elements - 1.0, 1.0) / elements
    return mode.variance_factors[size]


class GroupNorm(tf.Module):
    """Group normalisation (Wu & He 2018, arXiv:1803.08494) of each example, in groups of gcd(8, channels) channels."""

    def __init__(self, init: Initializer, channels: int):
        super().__init__()
        self.groups = channels // math.gcd(channels, 8)
        self.gamma = init.constant(1.0, channels, "gamma")
        self.beta = init.constant(0.0, channels, "beta")

    def __call__(self, x: tf.Tensor, mode: Mode, factor: float = 1.0, low_peak: bool = False) -> tf.Tensor:
        """Normalise x. `low_peak` changes nothing here; see BatchNorm."""
        height, width = (x.shape[axis] or tf.shape(x)[axis] for axis in (1, 2))
        channels = x.shape[-1]
        working = times(tf.cast(x, self.gamma.dtype), 1.0 / factor)
        grouped = tf.reshape(working, [-1, height, width, self.groups, channels // self.groups])
        mean, variance = tf.nn.moments(grouped, axes=[1, 2, 4], keepdims=True)
        normed = tf.reshape((grouped - mean) * tf.math.rsqrt(variance + EPSILON), tf.shape(x))
        return tf.cast(normed * self.gamma + self.beta, x.dtype)

    def pullback(
        self, x: tf.Tensor, mode: Mode, factor: float = 1.0, reread: Reread | None = None
    ) -> tuple[tf.Tensor, Pullback]:
        """Return y and its pullback. A replay keeps only x, or reads it again, and normalises it once more."""

        def whole(x: tf.Tensor) -> tuple[tf.Tensor, Pullback]:
            return tape_pullback(self, times(x, 1.0 / factor), mode)

        if not mode.replaying:
            return whole(x)

        def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
            return whole(after([d_y], x) if reread is None else reread.read([d_y]))[1](d_y)

        return self(x, mode, factor), backward


NORMS: dict[str, type[BatchNorm] | type[GroupNorm]] = {"batch": BatchNorm, "group": GroupNorm}
