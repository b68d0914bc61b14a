"""The endless stream of training examples, as a pure function of (seed, position).

Position p belongs to epoch p // size and stands at place p % size of it; each epoch is one permutation of all
examples. So every example is seen once per epoch, a batch may run across the end of an epoch, and a position is
the whole state of the input.

Everything random is a hash of its coordinates: splitmix64 (Steele, Lea & Flood 2014, "Fast splittable
pseudorandom number generators") chained over (purpose, seed, epoch, index, draw). Why not
tf.random.experimental.index_shuffle: its four rounds leave the orders of neighbouring epochs correlated (up to
0.7 for 50,000 examples), it takes milliseconds per index for tiny data sets, and one seed per element fails.
"""

from __future__ import annotations

import math

import tensorflow as tf

_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_ROUNDS = 8

# Purposes keep the hashes of one (seed, epoch, index) apart.
ORDER, AUGMENT, PATTERN, NOISE = range(4)


def hash64(*parts: int | tf.Tensor) -> tf.Tensor:
    """Chains integers (Python or int64/uint64 tensors that broadcast) into well-mixed uint64 values."""
    state = tf.constant(0, tf.uint64)
    for part in parts:
        state = _mix(state + _as_uint64(part) + tf.constant(_GAMMA, tf.uint64))
    return state


def random_below(bound: int, *parts: int | tf.Tensor) -> tf.Tensor:
    """Uniform int64 in [0, bound), one for each hash of `parts`. The bias is below bound / 2^63."""
    return tf.cast(tf.bitwise.right_shift(hash64(*parts), tf.constant(1, tf.uint64)), tf.int64) % bound


def random_uniform(low: float, high: float, *parts: int | tf.Tensor) -> tf.Tensor:
    """Uniform float32 in [low, high), in steps of (high - low) / 2^24, one for each hash of `parts`."""
    return low + (high - low) / 2**24 * tf.cast(random_below(2**24, *parts), tf.float32)


def example_at(position: tf.Tensor, size: int, seed: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Epoch and example index, each int64 [n], at stream positions int64 [n]."""
    epoch = position // size
    return epoch, permute(position % size, size, hash64(ORDER, seed, epoch))


def example_key(epoch: tf.Tensor, index: tf.Tensor, seed: int) -> tf.Tensor:
    """The uint64 [n] key from which every random choice about an example in an epoch is drawn."""
    return hash64(AUGMENT, seed, epoch, index)


def permute(place: tf.Tensor, size: int, key: tf.Tensor) -> tf.Tensor:
    """A pseudorandom permutation of 0..size-1 for each key, evaluated at `place`: int64 [n], uint64 [n] -> int64 [n].

    A Feistel network on a grid of about sqrt(size) x sqrt(size) cells; a value that falls on one of the few cells
    beyond `size` is enciphered again (Black & Rogaway 2002, "Ciphers with arbitrary finite domains").
    """
    columns = math.isqrt(size - 1) + 1
    rows = -(-size // columns)

    def encipher(cell: tf.Tensor) -> tf.Tensor:
        column, row = cell % columns, cell // columns
        for turn in range(0, _ROUNDS, 2):
            column = (column + random_below(columns, key, turn, row)) % columns
            row = (row + random_below(rows, key, turn + 1, column)) % rows
        return row * columns + column

    (cell,) = tf.while_loop(
        lambda cell: tf.reduce_any(cell >= size),
        lambda cell: (tf.where(cell >= size, encipher(cell), cell),),
        (encipher(place),),
    )
    return cell


def _as_uint64(part: int | tf.Tensor) -> tf.Tensor:
    if isinstance(part, int):
        return tf.constant(part & _MASK, tf.uint64)
    return tf.cast(part, tf.uint64)


def _mix(x: tf.Tensor) -> tf.Tensor:
    x = _xor_shift(x, 30) * tf.constant(0xBF58476D1CE4E5B9, tf.uint64)
    x = _xor_shift(x, 27) * tf.constant(0x94D049BB133111EB, tf.uint64)
    return _xor_shift(x, 31)


def _xor_shift(x: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(bits, tf.uint64)))
