"""A mark of tensors in a few bytes, to see later whether other tensors have the same bits."""

from __future__ import annotations

import tensorflow as tf

from accumtrain.backprop.fixed_point import INTEGERS
from accumtrain.backprop.order import after
from accumtrain.backprop.pullback import Streams
from accumtrain.backprop.target import is_for_xla, on_gpu


def marked(x: Streams) -> tuple[Streams, tf.Tensor | None]:
    """The same tensors, and a mark of their bits, int64 [number of tensors], computed before they are used.

    It is the sum of the bits as integers, which wraps around and does not depend on its order. A change of one number
    changes it; changes of several leave it as it was with a chance of 2^-32 in float32.

    There is no mark, None, on a GPU, where TensorFlow sums integers of 32 bits on the host, and for XLA, which may
    compute a replay in another order than the pass before.

    Args:
        x: of float32 or float64.
    """
    if on_gpu() or is_for_xla():
        return x, None
    integers = [tf.bitcast(each, INTEGERS[each.dtype]) for each in tf.nest.flatten(x)]
    mark = tf.stack([tf.cast(tf.reduce_sum(each), tf.int64) for each in integers])
    return after([mark], x), mark
