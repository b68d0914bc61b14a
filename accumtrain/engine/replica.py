"""The replica that a function is traced for, the number of all replicas, and the examples of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

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


def join_replicas(structure: Any) -> Any:
    """Return nested tensors [N, ...] of all replicas, one after the other. A scalar becomes the mean of all.

    A gradient reaches the values of this replica alone. Call it in replica context, outside loops. TensorFlow's own
    all_gather can't take another number of examples with each batch.

    Raises:
        ValueError: the replicas are not those of a MirroredStrategy.
    """
    replica = tf.distribute.get_replica_context()
    if replica.num_replicas_in_sync == 1:
        return structure
    leaves = tf.nest.flatten(structure)
    given = [number for number, leaf in enumerate(leaves) if leaf is not None]
    index = int(tf.get_static_value(replica.replica_id_in_sync_group))
    found = replica.merge_call(_take_parts, args=([leaves[number] for number in given],))
    for number, parts in zip(given, found, strict=True):
        parts[index] = leaves[number]  # the gradient goes through it
        leaves[number] = tf.concat(parts, 0) if leaves[number].shape.rank else tf.reduce_mean(tf.stack(parts), 0)
    return tf.nest.pack_sequence_as(structure, leaves)


def _take_parts(strategy: tf.distribute.Strategy, leaves: list[Any]) -> list[list[tf.Tensor]]:
    """Return the value of each replica, by leaf."""
    if not isinstance(strategy, tf.distribute.MirroredStrategy):
        raise ValueError(
            f"a loss of the whole batch can't be computed on the {strategy.num_replicas_in_sync} replicas of "
            f"{type(strategy).__name__}, whose outputs are not gathered: train with replicas of one machine, by "
            "tf.distribute.MirroredStrategy"
        )
    return [list(strategy.experimental_local_results(leaf)) for leaf in leaves]
