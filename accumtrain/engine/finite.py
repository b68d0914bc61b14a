"""Whether all numbers of many tensors are finite."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf


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
