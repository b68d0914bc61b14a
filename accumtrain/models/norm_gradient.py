"""The gradient of batch normalisation, with less memory at its peak than TensorFlow's operation takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import tensorflow as tf

PARTS = 8
ALL = slice(None)  # images


@dataclass(frozen=True)
class Reread:
    """How the input of a norm is read again for its gradient, so that it need not be kept.

    Attributes:
        read: a function of tensors that it waits for, and of a slice of the images, all by default.
        low_peak: whether memory peaks with the gradient, which may take longer then.
    """

    read: Callable[..., tf.Tensor]
    low_peak: bool


def norm_gradient(
    reread: Reread, d_y: tf.Tensor, gamma: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor, epsilon: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The gradients of x, gamma and beta, for x and d_y [N, H, W, C] of float32, with the biased variance of x.

    Both sums over all pixels are formed in PARTS parts. Then d_x takes the place of d_y, so that beside it only x is in
    memory, where TensorFlow's operation has all three. It takes nearly twice as long.
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
