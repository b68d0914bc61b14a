"""Adaptive gradient clipping (Brock et al. 2021, arXiv:2102.06171): a gradient is at most a share of its weight."""

from __future__ import annotations

import tensorflow as tf

SMALLEST_WEIGHT = 1e-3  # the norm that counts for a unit whose weights are smaller, or it would never move


def clip_by_weight(gradient: tf.Tensor, weight: tf.Tensor | tf.Variable, share: float | tf.Tensor) -> tf.Tensor:
    """Scales the gradient of each unit down to a norm of `share` times that of the unit's weights.

    A unit is all of a kernel that belongs to one index of its last axis, and the whole of a vector or scalar. In
    kernels of dense layers and convolutions, [..., inputs, outputs], it is what computes one output, as in the paper.
    Two kinds of Keras's kernels have coarser units: a depthwise one, [height, width, channels, multiplier], one of all
    channels for each multiple; those of attention, [inputs, heads, size], one of all heads for each index of `size`.

    Args:
        gradient: a tensor.
        weight: a tensor or variable of the same shape and dtype.
        share: the largest ratio of the two norms.
    """
    axes = list(range(gradient.shape.rank - 1)) if gradient.shape.rank > 1 else None
    gradient_norm, weight_norm = _norm(gradient, axes), _norm(weight, axes)
    limit = tf.cast(share, weight.dtype) * tf.maximum(weight_norm, SMALLEST_WEIGHT)
    # nothing is divided by 0: the limit is positive
    return gradient * (limit / tf.maximum(gradient_norm, limit))


def _norm(tensor: tf.Tensor, axes: list[int] | None) -> tf.Tensor:
    return tf.sqrt(tf.reduce_sum(tf.square(tensor), axis=axes))
