"""Dropout (Srivastava et al. 2014), whose draws are computed again in the backward pass instead of being kept.

Each is a hash of the number of its example, which `Mode.draws` gives, and of its place in the example. So the draws
depend on run, update and index in the window alone: not on micro-batches, replicas, padding or recomputation.
"""

from __future__ import annotations

import math

import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.pullback import Gradients, Pullback
from accumtrain.backprop.tracing import after
from accumtrain.models.transformers.layers import OwnGradient, axis_size

LEVELS = 2**16  # of a draw: a hash of 32 bits gives those of two neighbours
SEED_BITS = 24  # of the number of an example, as float32 has no more
GOLDEN = 0x9E3779B9  # keeps zeros from the hash, which makes zeros of them
KEY_PAIRS = 2**13  # between the places of a query and the next; texts have fewer tokens than twice that


class Dropout(OwnGradient):
    """Makes elements 0 in training, and multiplies the others by 1 / (1 - rate); the identity in evaluation.

    Args:
        rate: probability of 0, below 1; it is rounded to a multiple of 1 / LEVELS. 0 is the identity, without draws.
        number: of the layer in its model; each has its own draws.
    """

    def __init__(self, rate: float, number: int):
        super().__init__()
        self.number = number
        self._dropped = min(round(rate * LEVELS), LEVELS - 1)

    def acts(self, mode: Mode) -> bool:
        """Return whether it is not the identity."""
        return mode.training and self._dropped > 0

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        return super().__call__(x, mode) if self.acts(mode) else x

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        if not self.acts(mode):
            return x, lambda d_y: (d_y, [])
        seeds, places = self.seeds(mode), _places_of(x)

        def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
            return self.drop(d_y, self.keep(d_y, places, seeds)), []

        return self.drop(x, self.keep(x, places, seeds)), backward

    def seeds(self, mode: Mode) -> tf.Tensor:
        """Return a number for each example, uint32 [N]."""
        if mode.draws is None:
            raise ValueError("dropout needs Mode(draws=...): the random numbers of the examples")
        return _mix(tf.cast(mode.draws(self.number) * 2.0**SEED_BITS, tf.uint32) + tf.constant(GOLDEN, tf.uint32))

    def keep(self, x: tf.Tensor, places: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        """Return which elements of x [N, ..., C] are kept, bool. It is computed when x is there.

        Args:
            places: uint32 [..., C / 2], a number for every two neighbours in an example.
        """
        seeds = tf.reshape(after([x], seeds), [-1, *[1] * (x.shape.rank - 1)])
        draws = tf.bitcast(_mix(seeds ^ _mix(places + tf.constant(GOLDEN, tf.uint32))), tf.uint16)
        size = axis_size(x, -1)
        shape = [axis_size(x, axis) for axis in range(1, x.shape.rank - 1)]
        draws = tf.reshape(draws, [-1, *shape, 2 * axis_size(places, -1)])[..., :size]
        return draws >= tf.constant(self._dropped, tf.uint16)

    def drop(self, x: tf.Tensor, kept: tf.Tensor) -> tf.Tensor:
        """Return x where it is kept, multiplied by 1 / (1 - rate), else 0."""
        return tf.where(kept, x * tf.constant(LEVELS / (LEVELS - self._dropped), x.dtype), tf.zeros([], x.dtype))


def places_of_shares(heads: int, first: int, queries: int | tf.Tensor, keys: int | tf.Tensor) -> tf.Tensor:
    """Return the places of the shares of keys, uint32 [heads, queries, keys / 2]. They do not depend on padding.

    Args:
        first: the number of the first query.
    """
    query = tf.range(first, first + queries)[:, tf.newaxis]
    row = query * heads + tf.range(heads)[:, tf.newaxis, tf.newaxis]
    return tf.cast(row * KEY_PAIRS + tf.range((keys + 1) // 2), tf.uint32)


def _places_of(x: tf.Tensor) -> tf.Tensor:
    """Return the places of every two neighbours in an example of x [N, ..., C], uint32 [..., C / 2]."""
    shape = [*(axis_size(x, axis) for axis in range(1, x.shape.rank - 1)), (axis_size(x, -1) + 1) // 2]
    return tf.cast(tf.reshape(tf.range(math.prod(shape)), shape), tf.uint32)


def _mix(x: tf.Tensor) -> tf.Tensor:
    """Return a hash of each number, uint32: the last steps of MurmurHash3 (Appleby 2011)."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ tf.bitwise.right_shift(x, tf.constant(shift, tf.uint32))) * tf.constant(factor, tf.uint32)
    return x ^ tf.bitwise.right_shift(x, tf.constant(16, tf.uint32))
