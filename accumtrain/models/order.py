"""Order among operations that no data orders: what is computed when decides what is in memory at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def after(operations: Sequence[Any], tensors: Any) -> Any:
    """The same tensors, available only once all of `operations` (tensors or operations) are done."""
    with tf.control_dependencies(tf.nest.flatten(operations)):
        # not Identity: the graph optimizer moves casts in front of it, out of the order made here
        return tf.nest.pack_sequence_as(tensors, tf.identity_n(tf.nest.flatten(tensors)))
