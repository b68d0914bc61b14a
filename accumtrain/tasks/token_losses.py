"""Losses and metrics of tokens: functions of true ids, int32 [N, P], and logits [N, P, V] to values [N].

The id is -1 where there is no token to predict, and such a position counts in nothing. The value of an example is the
mean over its other positions, or 0 if it has none. Its weight is their number, so weighted means are means over all
tokens.
"""

from __future__ import annotations

import math
import sys

import tensorflow as tf

from accumtrain.engine.losses import PerExample
from accumtrain.tasks.config import TokenCrossEntropyConfig

LARGEST_LOSS = math.log(sys.float_info.max)  # whose exponential is finite


def token_cross_entropy(ids: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Return the mean over positions of -log softmax(logits)[id], [N]."""
    values = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(ids, 0), logits)
    return _mean_over_places(ids, values)


def token_accuracy(ids: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Return the share of positions where the largest logit is that of the id, [N]."""
    right = tf.equal(tf.argmax(logits, axis=-1, output_type=ids.dtype), ids)
    return _mean_over_places(ids, tf.cast(right, logits.dtype))


def perplexity(loss: float) -> float:
    """Return exp(loss); infinity beyond the largest number."""
    return math.inf if loss > LARGEST_LOSS else math.exp(loss)


def build_token_cross_entropy(config: TokenCrossEntropyConfig) -> PerExample:
    return token_cross_entropy


def _mean_over_places(ids: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    is_counted = ids >= 0
    count = tf.reduce_sum(tf.cast(is_counted, values.dtype), axis=-1)
    return tf.reduce_sum(tf.where(is_counted, values, tf.zeros_like(values)), axis=-1) / tf.maximum(count, 1.0)
