"""The sums of a window: buffers, their sum over all replicas in one collective operation, clearing, finite check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from accumtrain.optim.optimizer import VariableHandle


def sum_buffer(shape: Sequence[int], dtype: tf.DType) -> tf.Variable:
    """Return a variable of zeros. Each replica adds to its own copy. Outside replicas it reads as the sum of all."""
    return tf.Variable(
        tf.zeros(shape, dtype),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )


class Sums(NamedTuple):
    """The sums of a window, as buffers or as tensors. They are sent in the order of the fields."""

    gradients: list[tf.Variable]
    weight: tf.Variable  # the sum of the examples' weights, by which means are divided
    examples: tf.Variable  # the number of examples with a weight above 0
    loss: tf.Variable
    metrics: list[tf.Variable]
    stops: tf.Variable  # the number of workers that have asked to stop
    inexact: tf.Variable
    not_compared: tf.Variable
    out_of_range: tf.Variable
    statistics: list[tf.Variable]
    noise: Any  # the `NoiseSums`; () if they are not measured

    def reduce(self, dtype: tf.DType) -> Sums:
        """Return the sums over all replicas, as tensors. Call it in replica context."""
        totals = all_reduce_sum([tf.convert_to_tensor(buffer) for buffer in tf.nest.flatten(self)])
        return tf.nest.pack_sequence_as(self, [tf.cast(total, dtype) for total in totals])


def make_clear(dtype: tf.DType) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Return a function (handle, finite) that sets a buffer to zero. A graph holds it once, for all shapes."""

    @partial(
        tf.function,
        autograph=False,
        input_signature=[tf.TensorSpec([], tf.resource), tf.TensorSpec([], tf.bool)],
        experimental_attributes={"_noinline": True},
    )
    def clear(handle: tf.Tensor, finite: tf.Tensor) -> tf.Tensor:
        buffer = VariableHandle(handle, None, dtype)

        def subtract_itself() -> tf.Tensor:
            buffer.assign_sub(buffer.read() * tf.ones((), dtype))  # times 1 makes a copy, as the buffer itself changes
            return finite

        def overwrite() -> tf.Tensor:
            buffer.assign(tf.zeros_like(buffer.read()))
            return finite

        return tf.cond(finite, subtract_itself, overwrite)

    return clear


def all_reduce_sum(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the sum over replicas of each tensor. Call it in replica context.

    All tensors of a dtype are sent as one vector, as each collective operation costs its latency, however small.
    """
    replica = tf.distribute.get_replica_context()
    if replica.num_replicas_in_sync == 1:
        return list(tensors)
    sums: dict[int, tf.Tensor] = {}
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        chosen = [index for index, tensor in enumerate(tensors) if tensor.dtype == dtype]
        flat = tf.concat([tf.reshape(tensors[index], [-1]) for index in chosen], 0)
        total = replica.all_reduce(tf.distribute.ReduceOp.SUM, flat)
        parts = tf.split(total, [tensors[index].shape.num_elements() for index in chosen])
        for index, part in zip(chosen, parts, strict=True):
            sums[index] = tf.reshape(part, tensors[index].shape)
    return [sums[index] for index in range(len(tensors))]


def all_finite(values: Iterable[tf.Tensor]) -> tf.Tensor:
    """Return whether all numbers are finite, by their sums: one pass without a copy, as infinity and NaN stay in a sum.

    Vectors are joined before, because a deep network has hundreds of them and every operation costs time to trace. A
    sum beyond the largest number of the dtype, 3e38 in float32, counts as infinite.
    """
    values = list(values)
    vectors = [value for value in values if value.shape.rank == 1]
    dtypes = dict.fromkeys(vector.dtype for vector in vectors)
    joined = [tf.concat([vector for vector in vectors if vector.dtype == dtype], 0) for dtype in dtypes]
    values = [value for value in values if value.shape.rank != 1] + joined
    axes = {rank: tf.constant([*range(rank)], tf.int32, [rank]) for rank in {value.shape.rank for value in values}}
    sums = [tf.raw_ops.Sum(input=value, axis=axes[value.shape.rank]) for value in values]
    widest = max((total.dtype for total in sums), key=lambda dtype: dtype.size)
    return tf.reduce_all(tf.math.is_finite(tf.stack([tf.cast(total, widest) for total in sums])))


def values_of_workers(strategy: tf.distribute.Strategy, worker: int, workers: int, value: int) -> list[int]:
    """Return the `value` of the call of each worker, in the order of the workers."""
    own = tf.one_hot(worker, workers, dtype=tf.float64)

    @tf.function(autograph=False)
    def sums() -> tf.Tensor:
        return strategy.run(lambda: all_reduce_sum([value * own])[0])

    total = strategy.experimental_local_results(sums())[0].numpy()
    replicas = strategy.num_replicas_in_sync // workers  # each replica of a worker adds its value
    return [round(value) for value in total / replicas]
