"""`KeyValueCache`: what causal attention keeps of the tokens of a text, so that it can go on with the next ones."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

Pair = tuple[tf.Tensor, tf.Tensor]  # keys and values, [N, kv_heads, length, C]


class KeyValueCache:
    """Keys and values of the tokens so far, for each attention of a model in the order in which they are called.

    A pass reads and replaces each pair once; `restart` begins the next pass.

    Args:
        length: places of tokens.
        pairs: those of an earlier pass; none at the start.
    """

    def __init__(self, length: int, pairs: Sequence[Pair] = ()):
        self.length, self.pairs = length, list(pairs)
        self._next = 0

    def restart(self) -> None:
        self._next = 0

    def add(self, keys: tf.Tensor, values: tf.Tensor, places: tf.Tensor) -> Pair:
        """Put keys and values [N, kv_heads, T, C] at their places, int32 [N, T]. Return those of all places.

        Those of places that no token has had yet are 0.
        """
        index, self._next = self._next, self._next + 1
        new = (keys, values)
        if index == len(self.pairs):
            shape = [tf.shape(keys)[0], keys.shape[1], self.length, keys.shape[3]]
            self.pairs.append((tf.zeros(shape, keys.dtype), tf.zeros(shape, values.dtype)))
        first, second = (_put(*each, places) for each in zip(self.pairs[index], new, strict=True))
        self.pairs[index] = (first, second)
        return self.pairs[index]


def _put(kept: tf.Tensor, new: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Return kept [N, heads, length, C] with new [N, heads, T, C] at the places [N, T]."""
    examples, heads, tokens = tf.shape(new)[0], new.shape[1], tf.shape(new)[2]
    shape = [examples, heads, tokens]
    example = tf.broadcast_to(tf.range(examples)[:, tf.newaxis, tf.newaxis], shape)
    head = tf.broadcast_to(tf.range(heads)[:, tf.newaxis], shape)
    place = tf.broadcast_to(places[:, tf.newaxis], shape)
    return tf.tensor_scatter_nd_update(kept, tf.stack([example, head, place], axis=-1), new)
