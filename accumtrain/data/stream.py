"""The endless stream of training examples, as a pure function of (seed, position).

Position p belongs to epoch p // size and is index p % size in it. An epoch is one permutation of all examples, and a
batch may reach into the next epoch. So a position is the whole state of the input.

All random numbers come from a splitmix64 generator (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number
generators"), which computes its n-th output directly. Its seed, called key here, is a hash of the purpose of the
number, such as (seed, epoch, index).

tf.random.experimental.index_shuffle is not used. Its four rounds leave the orders of neighbouring epochs correlated (up
to 0.7 for 50,000 examples). It takes milliseconds per index for tiny data sets, and does not accept one seed per
element.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import tensorflow as tf

_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_ROUNDS = 8

# The purpose of a key: the first part of the hash, so that keys for different purposes differ.
ORDER, AUGMENT, PATTERN, NOISE, CLASS_ORDER, BLOCK_ORDER, MASK_ORDER, MASK_KIND, MASK_TOKEN = range(9)
UNREADABLE = -1  # in the place of the label of an example that can't be read, if data.on_error leaves it out


# ---- random numbers ----


def hash64(*parts: int | tf.Tensor) -> tf.Tensor:
    """Return a uint64 key from integers: Python numbers or int64 tensors of one shape, with at least one tensor."""
    state: int | tf.Tensor = 0
    for part in parts:
        if isinstance(state, int) and isinstance(part, int):
            state = _mix_int(state + part + _GAMMA & _MASK)  # leading constants cost nothing in the graph
        else:
            state = _mix(_uint64(state) + _uint64(part) + _uint64(_GAMMA))
    return state


def random64(key: tf.Tensor, number: int | tf.Tensor) -> tf.Tensor:
    """Return output `number` (0, 1, ...) of the generator with this key: uniform uint64 of the broadcast shape."""
    if isinstance(number, int):
        return _mix(key + _uint64((number + 1) * _GAMMA))
    return _mix(key + _uint64(number + 1) * _uint64(_GAMMA))


def random_below(bound: int | tf.Tensor, key: tf.Tensor, number: int | tf.Tensor) -> tf.Tensor:
    """Return uniform int64 in [0, bound) from output `number`. The bias is below bound / 2^63."""
    return tf.cast(tf.bitwise.right_shift(random64(key, number), _uint64(1)), tf.int64) % bound


def random_uniform(low: float, high: float, key: tf.Tensor, number: int | tf.Tensor) -> tf.Tensor:
    """Return uniform float32 in [low, high), in steps of (high - low) / 2^24, from output `number`."""
    return low + (high - low) / 2**24 * tf.cast(random_below(2**24, key, number), tf.float32)


def _uint64(value: int | tf.Tensor) -> tf.Tensor:
    return tf.constant(value & _MASK, tf.uint64) if isinstance(value, int) else tf.cast(value, tf.uint64)


def _mix(x: tf.Tensor) -> tf.Tensor:
    x = _xor_shift(x, 30) * _uint64(0xBF58476D1CE4E5B9)
    x = _xor_shift(x, 27) * _uint64(0x94D049BB133111EB)
    return _xor_shift(x, 31)


def _mix_int(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)


def _xor_shift(x: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, _uint64(bits)))


# ---- orders ----


def example_at(position: tf.Tensor, size: int, seed: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return epoch and example index, each int64 [n], at stream positions int64 [n]."""
    epoch = position // size
    return epoch, permute(position % size, size, hash64(ORDER, seed, epoch))


def example_key(epoch: tf.Tensor, index: tf.Tensor, seed: int) -> tf.Tensor:
    """Return the uint64 [n] key from which every random choice about an example in an epoch is drawn."""
    return hash64(AUGMENT, seed, epoch, index)


def balanced_order(labels: np.ndarray, seed: int) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Return the balanced stream as a function from positions, int64 [n], to pass and example index, each int64 [n].

    Every class appears equally often in it, however few examples it has.

    Of C classes that have examples, each block of C positions holds every class once, in an order of its own. The
    examples of a class follow each other in shuffled passes, so within a pass none is repeated. It is a pure function
    of (labels, seed, position), as `example_at` is of (size, seed, position).

    Args:
        labels: of the split, int [size]. Examples whose label is UNREADABLE do not appear.
        seed: decides all orders.
    """
    members = np.argsort(labels, kind="stable")  # examples by class
    members = members[labels[members] != UNREADABLE]
    _, first, size = np.unique(labels[members], return_index=True, return_counts=True)
    classes = len(size)

    def order(position: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        visit = position // classes  # counts the earlier appearances of every class
        chosen = permute(position % classes, classes, hash64(CLASS_ORDER, seed, visit))
        examples = tf.gather(tf.constant(size, tf.int64), chosen)
        turn = visit // examples
        index = permute(visit % examples, examples, hash64(ORDER, seed, turn, chosen))
        return turn, tf.gather(tf.constant(members, tf.int64), tf.gather(tf.constant(first, tf.int64), chosen) + index)

    return order


def permute(index: tf.Tensor, size: int | tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Return the values at `index`, int64 [n], of a pseudorandom permutation of 0..size-1 for each key, uint64 [n].

    `size` is a number, or one for each key, int64 [n].

    It is a Feistel network on a grid of about sqrt(size) x sqrt(size) cells. A value that falls on one of the few cells
    beyond `size` is enciphered again (Black & Rogaway 2002, "Ciphers with arbitrary finite domains").
    """
    columns = _root(size - 1) + 1
    rows = -(-size // columns)

    def encipher(cell: tf.Tensor, outside: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        column, row = cell % columns, cell // columns
        for turn in range(0, _ROUNDS, 2):
            column = (column + random_below(columns, key, row * _ROUNDS + turn)) % columns
            row = (row + random_below(rows, key, column * _ROUNDS + turn + 1)) % rows
        cell = tf.where(outside, row * columns + column, cell)
        return cell, cell >= size

    everywhere = tf.ones_like(index, tf.bool)
    cell, _ = tf.while_loop(lambda _, outside: tf.reduce_any(outside), encipher, (index, everywhere))
    return cell


def _root(number: int | tf.Tensor) -> int | tf.Tensor:
    """Return the square root, rounded down. A tensor holds numbers below 2^52."""
    if isinstance(number, int):
        return math.isqrt(number)
    return tf.cast(tf.sqrt(tf.cast(number, tf.float64)), tf.int64)
