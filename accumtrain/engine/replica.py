"""The replica that a function is traced for, and the number of all replicas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import tensorflow as tf

_traced_for: ContextVar[tuple[tf.Tensor, int] | None] = ContextVar("traced_for", default=None)


@contextmanager
def as_replica(index: tf.Tensor, count: int) -> Iterator[None]:
    """Trace functions for replica `index` of `count`, which no strategy of TensorFlow knows of."""
    token = _traced_for.set((index, count))
    try:
        yield
    finally:
        _traced_for.reset(token)


def current_replica() -> tuple[tf.Tensor, int]:
    """Return the index of the replica, int32 [], and the number of all. Call it in replica context."""
    if (known := _traced_for.get()) is not None:
        return known
    index = tf.distribute.get_replica_context().replica_id_in_sync_group
    return tf.cast(index, tf.int32), tf.distribute.get_strategy().num_replicas_in_sync
