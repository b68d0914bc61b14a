"""Sum buffers, one all-reduce, clearing, finite check."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tensorflow as tf

# Sums over all replicas, in one collective operation.


def all_reduce_sum(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The sum over replicas of each tensor. Call it in replica context.

    All tensors of a dtype are sent as one vector, as each collective operation costs its latency, however small.
    """
    replica = tf.distribute.get_replica_context()
    if replica.num_replicas_in_sync == 1:
        return list(tensors)
    sums: dict[int, tf.Tensor] = {}
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        chosen = [place for place, tensor in enumerate(tensors) if tensor.dtype == dtype]
        flat = tf.concat([tf.reshape(tensors[place], [-1]) for place in chosen], 0)
        total = replica.all_reduce(tf.distribute.ReduceOp.SUM, flat)
        parts = tf.split(total, [tensors[place].shape.num_elements() for place in chosen])
        for place, part in zip(chosen, parts, strict=True):
            sums[place] = tf.reshape(part, tensors[place].shape)
    return [sums[place] for place in range(len(tensors))]


def same_on_all_replicas(strategy: tf.distribute.Strategy, value: int) -> bool:
    """Whether all replicas, on all workers, hold the same number."""

    @tf.function(autograph=False)
    def moments() -> tf.Tensor:
        return strategy.run(lambda: all_reduce_sum([tf.constant([value, value**2], tf.float64)])[0])

    total = strategy.experimental_local_results(moments())[0].numpy()
    return bool(total[1] * strategy.num_replicas_in_sync == total[0] ** 2)  # n * sum(v^2) = sum(v)^2: all v are equal


def values_of_workers(strategy: tf.distribute.Strategy, worker: int, workers: int, value: int) -> list[int]:
    """Return the value that each worker calls it with, in the order of the workers."""
    place = tf.one_hot(worker, workers, dtype=tf.float64)

    @tf.function(autograph=False)
    def sums() -> tf.Tensor:
        return strategy.run(lambda: all_reduce_sum([value * place])[0])

    total = strategy.experimental_local_results(sums())[0].numpy()
    replicas = strategy.num_replicas_in_sync // workers  # each of a worker's adds its value
    return [round(value) for value in total / replicas]


# Whether all numbers of many tensors are finite.


def all_finite(values: Iterable[tf.Tensor]) -> tf.Tensor:
    """Whether all numbers are finite, by their sums: infinity and NaN stay in a sum, and it is one pass without a copy.

    Vectors are joined before, as a deep network has hundreds of them and every operation costs time to trace. A sum
    beyond the largest number of the dtype, 3e38 in float32, counts as infinite.
    """
    values = list(values)
    vectors = [each for each in values if each.shape.rank == 1]
    dtypes = dict.fromkeys(each.dtype for each in vectors)
    joined = [tf.concat([each for each in vectors if each.dtype == dtype], 0) for dtype in dtypes]
    values = [each for each in values if each.shape.rank != 1] + joined
    axes = {rank: tf.constant([*range(rank)], tf.int32, [rank]) for rank in {each.shape.rank for each in values}}
    sums = [tf.raw_ops.Sum(input=each, axis=axes[each.shape.rank]) for each in values]
    widest = max((each.dtype for each in sums), key=lambda dtype: dtype.size)
    return tf.reduce_all(tf.math.is_finite(tf.stack([tf.cast(each, widest) for each in sums])))
