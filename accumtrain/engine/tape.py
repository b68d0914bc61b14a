"""The segment tape: back-propagation that keeps of each segment what its memory policy says.

A replayed segment waits for the gradient that needs it. Without that order the executor computes all replays at
once, early, and nothing is saved: every replayed op, the reads and casts of the weights included, is created under
a control dependency on the incoming gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import tensorflow as tf

from accumtrain.models.add import add_in_place, subtract
from accumtrain.models.mode import Mode
from accumtrain.models.order import after
from accumtrain.models.pullback import Gradients, Streams, pullback
from accumtrain.models.segments import Coupling, Model, Segment, Stage
from accumtrain.models.target import is_for_xla

Emit = Callable[[Gradients], list[tf.Operation]]
LANES = 128  # a TPU pads channels, where they lie innermost, to a multiple of these


def gradient(
    model: Model,
    images: tf.Tensor,
    loss: Callable[[tf.Tensor], tf.Tensor],
    mode: Mode,
    emit: Emit,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Computes a loss and hands the gradient of every variable to `emit`, segment by segment from the last.

    Args:
        images: [N, H, W, C].
        loss: scalar function of the logits.
        mode: a training mode that records; afterwards it holds the batch statistics.
        emit: takes pairs of a variable and its gradient (None where the loss does not depend on it) as soon as they
            are known and returns the operations that consume them; the next segment waits for these.

    Returns:
        The loss and the logits [N, classes].
    """
    backwards: list[Callable[[Streams, Streams], tuple[Streams, Streams]]] = []
    x: Streams = tf.cast(images, model.compute_dtype)
    for segment in model.segments:
        x, backward = _forward(segment, x, mode, emit)
        backwards.append(backward)

    logits = x
    with tf.GradientTape() as tape:
        tape.watch(logits)
        value = loss(logits)
    d_x: Streams = tape.gradient(value, logits)
    for backward in reversed(backwards):
        x, d_x = backward(x, d_x)
    return value, logits


def _forward(segment: Segment, x: Streams, mode: Mode, emit: Emit) -> tuple[Streams, Callable]:
    """Output of a segment, and its backward: (output, d_output) -> (input, d_input)."""
    if segment.memory == "store":
        y, pulled_back = pullback(segment, x, mode)
        return y, lambda _, d_y: (x, _emitted(pulled_back(d_y), emit))
    if segment.memory == "recompute":
        x, again = _keep(x)
        y, _ = pullback(segment, x, mode)
        return y, lambda _, d_y: _replay(segment, again(d_y), d_y, mode, emit)[:2]
    kept = None
    if not segment.units[0].invertible:
        x, kept = _keep(x)
    y, _ = pullback(segment, x, mode)
    return y, lambda y, d_y: _reverse(segment, kept, y, d_y, mode, emit)


def _keep(x: Streams) -> tuple[Streams, Callable[[Streams], Streams]]:
    """What to go on with, and a function that gives it again once d_y is there.

    For XLA, streams that fill half of a TPU's lanes each are kept as one; narrower ones it knows to lay out better.
    """
    if not is_for_xla() or isinstance(x, tf.Tensor) or sum(stream.shape[-1] for stream in x) != LANES:
        return x, lambda _: x
    joined = tf.concat(x, axis=-1)
    return after([joined], x), lambda d_y: tuple(tf.split(after([d_y], joined), len(x), axis=-1))


def _emitted(result: tuple[Streams, Gradients], emit: Emit) -> Streams:
    """Emits the gradients of a pullback's result; that of the input is there once they are consumed."""
    d_x, gradients = result
    consumed = emit(gradients)
    if is_for_xla():  # which waits for tensors only
        consumed = [gradient for _, gradient in gradients if gradient is not None]
    return after(consumed, d_x)


def _replay(
    module: Callable,
    x: Streams,
    d_y: Streams,
    mode: Mode,
    emit: Emit,
    then: Callable[[Streams], Streams] | None = None,
) -> tuple[Streams, Streams, Streams]:
    """Computes y = module(x) again once d_y is there, and differentiates it. Returns x, d_x and then(y).

    Back-propagation waits for then(y), so what only that needs is freed before gradients take memory.
    """
    x = after([d_y], x)
    with tf.control_dependencies(tf.nest.flatten(x)):
        y, pulled_back = pullback(module, x, mode.replay())
    result = None
    if then is not None:
        result = then(y)
        d_y = after([result], d_y)
    return x, _emitted(pulled_back(d_y), emit), result


def _reverse(
    stage: Stage, kept: Callable[[Streams], Streams] | None, y: Streams, d_y: Streams, mode: Mode, emit: Emit
) -> tuple[Streams, Streams]:
    """Walks a stage backwards, each unit's input computed from its output; a first one that can't be has it `kept`."""
    for unit in reversed(stage.units):
        x = None if unit.invertible or kept is None else kept(d_y)
        y, d_y = _reverse_unit(unit, x, y, d_y, mode, emit)
    return y, d_y


def _reverse_unit(
    unit: Coupling, kept: Streams, y: Streams, d_y: Streams, mode: Mode, emit: Emit
) -> tuple[Streams, Streams]:
    """Input of a unit and the gradient there, from its output; `kept` is the input of one that can't be inverted.

    y1 = s1(x1) + F(x2), y2 = s2(x2) + G(y1), from the end: G, F, then the shortcuts, each freed before the next.

    The sums are formed in the order in which plain back-propagation forms them, so the gradient has the same bits.
    """
    (y1, y2), (d_y1, d_y2) = y, d_y
    invert1, invert2 = (partial(subtract, y1), partial(subtract, y2)) if unit.invertible else (None, None)
    y1, d_g, x2 = _replay(unit.g, after([d_y1], y1), d_y2, mode, emit, invert2)
    d_y1 = add_in_place(d_y1, d_g)
    x2, d_x2, x1 = _replay(unit.f, x2 if unit.invertible else kept[1], d_y1, mode, emit, invert1)
    if unit.shortcuts is None:
        return (x1, x2), (d_y1, add_in_place(d_y2, d_x2))
    x1, d_x1, _ = _replay(unit.shortcuts[0], kept[0], after([d_x2], d_y1), mode, emit)
    _, d_across, _ = _replay(unit.shortcuts[1], x2, after([d_x1], d_y2), mode, emit)
    return (x1, x2), (d_x1, add_in_place(d_across, d_x2))
