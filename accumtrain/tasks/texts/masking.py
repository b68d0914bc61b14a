"""Masking of tokens (Devlin et al. 2018, arXiv:1810.04805), as a pure function of the tokens and a key of each example.

In training the key is a hash of seed, epoch and example (data/stream.py), in evaluations the example's index. So a mask
does not depend on the batch, on micro-batches and replicas, or on where a run was continued.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from accumtrain.data.stream import MASK_KIND, MASK_ORDER, MASK_TOKEN, hash64, random_below, random_uniform
from accumtrain.data.text.vocabulary import Vocabulary
from accumtrain.fields import NONE
from accumtrain.tasks.config import MaskedTokensConfig

_ORDERS = 2**62  # random numbers that a position can draw; the positions with the smallest are chosen


class MaskedExamples(NamedTuple):
    """Masked examples.

    Attributes:
        tokens: those that the model sees, int32 [N, T].
        positions: those whose tokens are to be predicted, int32 [N, P]; NONE behind the last.
        ids: the tokens there, int32 [N, P]; NONE where there is no position.
        counts: the number of positions of each example, int32 [N].
    """

    tokens: tf.Tensor
    positions: tf.Tensor
    ids: tf.Tensor
    counts: tf.Tensor


def most_positions(share: float, length: int) -> int:
    """Return P, the number of positions of an example of `length` tokens."""
    return max(1, round(share * length))


def mask_tokens(
    tokens: tf.Tensor, key: tf.Tensor, vocabulary: Vocabulary, config: MaskedTokensConfig, most: int
) -> MaskedExamples:
    """Choose positions among the tokens that are neither padding nor special, and mask them.

    Of n such tokens max(1, round(config.share * n)) are chosen; of 0 none. A half is rounded to the even number.

    Args:
        tokens: int32 [N, T].
        key: of the random numbers of each example, uint64 [N].
        most: P, from `most_positions`.
    """
    is_plain = _find_plain(vocabulary)
    plain = np.flatnonzero(is_plain).astype(np.int32)
    is_candidate = _find_candidates(tokens, is_plain)
    counts = _count_chosen(is_candidate, config.share)

    every = tf.range(tf.shape(tokens)[1])
    order_key, kind_key, token_key = (
        hash64(purpose, key)[:, tf.newaxis] for purpose in (MASK_ORDER, MASK_KIND, MASK_TOKEN)
    )
    drawn = random_below(_ORDERS, order_key, every)
    order = tf.argsort(tf.where(is_candidate, drawn, _ORDERS), axis=1, stable=True)  # others are last
    chosen = tf.argsort(order, axis=1) < counts[:, tf.newaxis]
    kind = random_uniform(0.0, 1.0, kind_key, every)
    other = tf.gather(plain, random_below(len(plain), token_key, every))
    shown = tf.where(
        kind < config.masked, vocabulary.mask, tf.where(kind < config.masked + config.random, other, tokens)
    )

    first = order[:, :most]
    is_used = tf.range(tf.shape(first)[1]) < counts[:, tf.newaxis]
    positions = tf.ensure_shape(tf.where(is_used, first, NONE), first.shape)
    return MaskedExamples(tf.where(chosen, shown, tokens), positions, gather_tokens(tokens, positions), counts)


def count_masked(tokens: tf.Tensor, vocabulary: Vocabulary, share: float) -> tf.Tensor:
    """Return how many of the tokens [N, T] `mask_tokens` chooses, int32 [N]."""
    return _count_chosen(_find_candidates(tf.cast(tokens, tf.int32), _find_plain(vocabulary)), share)


def gather_tokens(tokens: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Return the tokens [N, T] at positions [N, P], NONE where there is no position."""
    return tf.where(positions >= 0, tf.gather(tokens, tf.maximum(positions, 0), batch_dims=1), NONE)


def _find_plain(vocabulary: Vocabulary) -> np.ndarray:
    """Return a mask of the tokens that are not special, bool [V]."""
    return np.isin(np.arange(vocabulary.size), vocabulary.special, invert=True)


def _find_candidates(tokens: tf.Tensor, is_plain: np.ndarray) -> tf.Tensor:
    """Return a mask of the tokens [N, T] that are neither padding nor special."""
    return (tokens >= 0) & tf.gather(is_plain, tf.maximum(tokens, 0))


def _count_chosen(is_candidate: tf.Tensor, share: float) -> tf.Tensor:
    """Return the number of positions to choose among the candidates, bool [N, T]: int32 [N]."""
    count = tf.reduce_sum(tf.cast(is_candidate, tf.float64), axis=1)
    chosen = tf.minimum(tf.maximum(tf.round(share * count), 1.0), count)
    return tf.cast(chosen, tf.int32)
