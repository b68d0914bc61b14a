"""Replays: a part of a model is computed again when its gradient is needed; and what is kept for that.

Every replayed operation, the reads and casts of the weights included, is created under a control dependency on the
incoming gradient. Without it TensorFlow's executor computes all replays at once, early, and no memory is saved.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from accumtrain.backprop.fixed_point import FixedPoint
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.pullback import Gradients, Module, Streams, pullback
from accumtrain.backprop.tracing import after, is_for_xla

# From pairs of a variable and its gradient, as soon as they are known, to the operations that consume them.
Consume = Callable[[Gradients], list[tf.Operation]]
RestoreStreams = Callable[[Streams], Streams]  # from the incoming gradient to the streams that were kept
Keep = Callable[[Streams], tuple[Streams, RestoreStreams]]
LANES = 128  # a TPU pads the innermost dimension, here the channels, to a multiple of this


def forward_stored(module: Module, x: Streams, mode: Mode, consume: Consume) -> tuple[Streams, Callable]:
    """Run a module and keep all its activations. Return y and the function from (y, d_y) to (x, d_x)."""
    y, backward = pullback(module, x, mode)
    return y, lambda _, d_y: (x, _consume_first(backward(d_y), consume))


def save_for_backward(x: Streams) -> tuple[Streams, RestoreStreams]:
    """Return the same streams, and a function that returns them again once the gradient of the output is available.

    For XLA, two streams of LANES / 2 channels are kept as one tensor, since a TPU would pad each of them to LANES.
    XLA finds a better layout by itself for narrower streams.
    """
    if not is_for_xla() or not _are_streams(x) or sum(stream.shape[-1] for stream in x) != LANES:
        return x, lambda _: x
    joined = tf.concat(x, axis=-1)
    return after([joined], x), lambda d_y: tuple(tf.split(after([d_y], joined), len(x), axis=-1))


def _are_streams(x: Streams) -> bool:
    """Return whether x is the streams of a reversible stage, not one tensor or the input of a part of a Keras model."""
    return isinstance(x, tuple) and all(isinstance(stream, tf.Tensor) and stream.shape.rank for stream in x)


def save_values_for_backward(numbers: FixedPoint, dtype: tf.DType, x: Streams) -> tuple[Streams, RestoreStreams]:
    """Do as `save_for_backward`, but keep only the values of the streams in `dtype`, bfloat16 or float32.

    It is for a module that reads no more of them. The streams that are returned later have other bits, but the same
    values in `dtype`.
    """
    values = [numbers.read(stream, dtype, numbers.scale(stream.dtype)) for stream in x]

    def restore(d_y: Streams) -> Streams:
        streams = zip(after([d_y], values), x, strict=True)
        return tuple(numbers.encode(tf.cast(value, stream.dtype)) for value, stream in streams)

    return after(values, x), restore


def _consume_first(result: tuple[Streams, Gradients], consume: Consume) -> Streams:
    """Consume the gradients of the variables. Return that of the input, available only after them."""
    d_x, gradients = result
    known = [gradient for _, gradient in gradients if gradient is not None]  # XLA waits for tensors only
    consumed = consume(gradients)
    return after(known if is_for_xla() else consumed, d_x)


def replay(
    module: Module,
    x: Streams,
    d_y: Streams,
    mode: Mode,
    consume: Consume,
    then: Callable[[Streams], Streams] | None = None,
) -> tuple[Streams, Streams, Streams]:
    """Compute y = module(x) again, once d_y is available, and back-propagate d_y. Return x, d_x and then(y).

    Args:
        then: a function of y that is computed before back-propagation starts, so that y is freed before gradients
            take memory.
    """
    x = after([d_y], x)
    with tf.control_dependencies(tf.nest.flatten(x)):
        y, backward = pullback(module, x, mode.replay())
    result = None
    if then is not None:
        result = then(y)
        d_y = after([result], d_y)
    return x, _consume_first(backward(d_y), consume), result
