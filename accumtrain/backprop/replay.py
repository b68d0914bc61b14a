"""Parts of a model computed again for their gradient, in an order that keeps the memory small.

A replay waits for the gradient that needs it. Without that order the executor computes all replays at once, early, and
nothing is saved: every replayed op, the reads and casts of the weights included, is created under a control dependency
on the incoming gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.order import after
from accumtrain.backprop.pullback import Gradients, Module, Streams, pullback
from accumtrain.backprop.target import is_for_xla

# Takes pairs of a variable and its gradient as soon as they are known; returns the operations that consume them.
Consume = Callable[[Gradients], list[tf.Operation]]
Kept = Callable[[Streams], Streams]  # from the incoming gradient to what was kept for it
LANES = 128  # a TPU pads channels, where they lie innermost, to a multiple of these


def stored(module: Module, x: Streams, mode: Mode, consume: Consume) -> tuple[Streams, Callable]:
    """The output of a module whose activations are all kept, and its backward: (output, d_output) -> (x, d_x)."""
    y, backward = pullback(module, x, mode)
    return y, lambda _, d_y: (x, _consumed(backward(d_y), consume))


def keep(x: Streams) -> tuple[Streams, Kept]:
    """The same streams, and a function that gives them once more when the gradient of the output is there.

    For XLA, streams that fill half of a TPU's lanes each are kept as one; narrower ones it knows to lay out better.
    """
    if not is_for_xla() or isinstance(x, tf.Tensor) or sum(stream.shape[-1] for stream in x) != LANES:
        return x, lambda _: x
    joined = tf.concat(x, axis=-1)
    return after([joined], x), lambda d_y: tuple(tf.split(after([d_y], joined), len(x), axis=-1))


def _consumed(result: tuple[Streams, Gradients], consume: Consume) -> Streams:
    """The gradient of the input, available once those of the variables are consumed."""
    d_x, gradients = result
    consumed = consume(gradients)
    if is_for_xla():  # which waits for tensors only
        consumed = [gradient for _, gradient in gradients if gradient is not None]
    return after(consumed, d_x)


def replay(
    module: Module,
    x: Streams,
    d_y: Streams,
    mode: Mode,
    consume: Consume,
    then: Callable[[Streams], Streams] | None = None,
) -> tuple[Streams, Streams, Streams]:
    """Computes y = module(x) again once d_y is there, and differentiates it. Returns x, d_x and then(y).

    Back-propagation waits for then(y), so what only that needs is freed before gradients take memory.
    """
    x = after([d_y], x)
    with tf.control_dependencies(tf.nest.flatten(x)):
        y, backward = pullback(module, x, mode.replay())
    result = None
    if then is not None:
        result = then(y)
        d_y = after([result], d_y)
    return x, _consumed(backward(d_y), consume), result
