"""Texts of similar length after each other, so that little of a batch is padding; and batches cut to what they hold.

The order is still a pure function of (seed, position), for any batch and any number of micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import tensorflow as tf

from accumtrain.data.stream import BLOCK_ORDER, hash64, permute
from accumtrain.data.text.token_split import take_ids
from accumtrain.data.text.vocabulary import PADDING

WINDOW = 4096  # positions that are sorted together
BLOCK = 32  # examples of similar length that stay together

Order = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]  # from positions to epochs and indices, each int64 [n]
_KEPT = 4  # sorted windows that are kept; the batches that are read at the same time are in one or two


def order_by_length(order: Order, lengths: np.ndarray, seed: int) -> Order:
    """Return an order in which examples of similar length are near each other.

    An epoch is divided into windows of WINDOW positions, which keep their examples. A window is sorted by length,
    stably, and divided into blocks of BLOCK examples. The blocks are shuffled; a shorter last block stays at the end.

    Args:
        order: That of the stream.
        lengths: int32 [size], the tokens of each example.
        seed: Decides the order of the blocks.
    """
    size = len(lengths)
    compiled = tf.function(order, [tf.TensorSpec([None], tf.int64)], autograph=False)

    @lru_cache(_KEPT)
    def sort_window(first: int) -> np.ndarray:
        """Return the offsets, int64, of the examples of the window that begins at a position, by rank."""
        with tf.device("CPU"):
            _, index = compiled(tf.range(first, first + min(WINDOW, size - first % size), dtype=tf.int64))
        return np.argsort(lengths[index.numpy()], kind="stable")

    def find_offsets(first: np.ndarray, rank: np.ndarray) -> np.ndarray:
        offset = np.empty_like(rank)
        for window in np.unique(first).tolist():
            inside = first == window
            offset[inside] = sort_window(window)[rank[inside]]
        return offset

    def ordered(position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        offset = position % size % WINDOW
        first = position - offset  # of the window
        blocks = tf.minimum(tf.constant(WINDOW, tf.int64), size - first % size) // BLOCK
        shuffled = permute(offset // BLOCK, tf.maximum(blocks, 1), hash64(BLOCK_ORDER, seed, first))
        rank = tf.where(offset < blocks * BLOCK, shuffled * BLOCK + offset % BLOCK, offset)
        found = tf.numpy_function(find_offsets, [first, rank], tf.int64, stateful=False)
        return order(first + tf.ensure_shape(found, position.shape))

    return ordered


def trim(tokens: tf.Tensor, buckets: Sequence[int]) -> tf.Tensor:
    """Return tokens, int32 [n, T] or [n, 2, T], cut to the first bucket that holds the longest; uncut if none does.

    Args:
        buckets: Increasing lengths.
    """
    lengths = tf.constant([*buckets, tokens.shape[-1]])
    longest = tf.reduce_max(tf.reduce_sum(tf.cast(take_ids(tokens) != PADDING, tf.int32), axis=1))
    return tokens[..., : lengths[tf.searchsorted(lengths, longest[tf.newaxis])[0]]]
