"""Texts of similar length after each other, so that little of a batch is padding; and batches cut to what they hold.

The order is still a pure function of (seed, position), for any batch and any number of micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from accumtrain.data.stream import BLOCK_ORDER, hash64, permute
from accumtrain.data.text.vocabulary import PADDING

WINDOW = 4096  # positions that are sorted together
BLOCK = 32  # examples of similar length that stay together

Order = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]  # from positions to epochs and indices, each int64 [n]


def order_by_length(order: Order, lengths: np.ndarray, seed: int) -> Order:
    """Return an order with the same examples in each window of WINDOW positions of an epoch, sorted by length.

    A window is sorted, ties in the given order, and divided into blocks of BLOCK examples. The blocks are shuffled, but
    for the rest of the window at its end.

    Args:
        order: That of the stream.
        lengths: int32 [size], the tokens of each example.
        seed: Decides the order of the blocks.
    """
    size = len(lengths)

    def sort_window(first: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """Return the places, int64 [k, WINDOW], of windows by rank; those from `count` on, int64 [k], come last."""
        place = tf.range(WINDOW, dtype=tf.int64)
        _, index = order(tf.reshape(first[:, tf.newaxis] + place, [-1]))
        length = tf.reshape(tf.gather(tf.constant(lengths, tf.int64), index), [-1, WINDOW])
        beyond = tf.constant(int(lengths.max()) + 1, tf.int64)
        length = tf.where(place < count[:, tf.newaxis], length, beyond)
        return tf.sort(length * WINDOW + place, axis=-1) % WINDOW

    def ordered(position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        place = position % size % WINDOW
        firsts, which = tf.unique(position - place)  # windows are few: a batch lies in one or two
        counts = tf.minimum(tf.constant(WINDOW, tf.int64), size - firsts % size)
        first, blocks = tf.gather(firsts, which), tf.gather(counts, which) // BLOCK
        shuffled = permute(place // BLOCK, tf.maximum(blocks, 1), hash64(BLOCK_ORDER, seed, first))
        rank = tf.where(place < blocks * BLOCK, shuffled * BLOCK + place % BLOCK, place)
        at = tf.stack([tf.cast(which, tf.int64), rank], axis=-1)
        return order(first + tf.gather_nd(sort_window(firsts, counts), at))

    return ordered


def trim(tokens: tf.Tensor, buckets: Sequence[int]) -> tf.Tensor:
    """Return tokens, int32 [n, T], cut to the first bucket that holds the longest; uncut if none does.

    Args:
        buckets: Increasing lengths.
    """
    lengths = tf.constant([*buckets, tokens.shape[1]])
    longest = tf.reduce_max(tf.reduce_sum(tf.cast(tokens != PADDING, tf.int32), axis=1))
    return tokens[:, : lengths[tf.searchsorted(lengths, longest[tf.newaxis])[0]]]
