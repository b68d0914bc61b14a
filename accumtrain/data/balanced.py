"""Balanced sampling: every class appears equally often in the stream, however few examples it has."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from accumtrain.data.labels import UNREADABLE
from accumtrain.data.stream import CLASS_ORDER, ORDER, hash64, permute


def balanced_order(labels: np.ndarray, seed: int) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """The balanced stream as a function from positions, int64 [n], to pass and example index, each int64 [n].

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
        visit = position // classes  # how often each class has come before
        chosen = permute(position % classes, classes, hash64(CLASS_ORDER, seed, visit))
        examples = tf.gather(tf.constant(size, tf.int64), chosen)
        turn = visit // examples
        place = permute(visit % examples, examples, hash64(ORDER, seed, turn, chosen))
        return turn, tf.gather(tf.constant(members, tf.int64), tf.gather(tf.constant(first, tf.int64), chosen) + place)

    return order
