"""Order among operations that no data orders: what is computed when decides what is in memory at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.compiler.tf2xla.python.xla import optimization_barrier

from accumtrain.backprop.target import is_for_xla


def after(operations: Sequence[Any], tensors: Any) -> Any:
    """The same tensors, available only once all of `operations` (tensors or operations) are done.

    XLA drops control dependencies but keeps barriers, and these wait for tensors only.
    """
    first, then = tf.nest.flatten(operations), tf.nest.flatten(tensors)
    if is_for_xla():
        waited = [value for value in first if isinstance(value, tf.Tensor)]
        return tf.nest.pack_sequence_as(tensors, optimization_barrier(*waited, *then)[len(waited) :])
    with tf.control_dependencies(first):
        # not Identity: the graph optimizer moves casts in front of it, out of the order made here
        return tf.nest.pack_sequence_as(tensors, tf.identity_n(then))
