"""Back-propagation through a model, segment by segment. The memory policy of each decides what is kept of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.model import Model
from accumtrain.backprop.pullback import Streams
from accumtrain.backprop.replay import Consume, forward_stored
from accumtrain.backprop.segments import Backward, Segment


class WithLoss:
    """The last segment followed by the loss, a scalar. `logits` are those of the last call."""

    def __init__(self, segment: Segment, loss: Callable[[Any], tf.Tensor]):
        self._segment, self._loss = segment, loss
        self.trainable_variables = getattr(segment, "trainable_variables", ())
        self.logits: Streams = None

    def __call__(self, x: Streams, mode: Mode) -> tf.Tensor:
        self.logits = mode.invalidate_out_of_range(self._segment(x, mode))
        return self._loss(self.logits)


def gradient(
    model: Model,
    images: tf.Tensor,
    loss: Callable[[Any], tf.Tensor],
    mode: Mode,
    consume: Consume,
) -> tuple[tf.Tensor, Any]:
    """Compute a loss and hand the gradient of every variable to `consume`, segment by segment from the last.

    Args:
        images: [N, H, W, C], of any float dtype.
        loss: function from the logits [N, classes], or their `LinearLogits`, to a scalar.
        mode: Mode(training=True, recording=True), which holds the batch statistics afterwards.
        consume: takes pairs of a variable and its gradient as soon as they are known, and returns the operations that
            consume them. The next segment waits for these operations. A gradient is None if the loss does not depend
            on its variable.

    Returns:
        The loss, and what it was computed from.
    """
    backwards: list[Backward] = []
    x, mode = model.begin(images, mode)
    joins_loss = model.joins_loss or (mode.defers_logits and model.defers_logits)
    last = WithLoss(model.segments[-1], loss) if joins_loss else None
    first = model.frozen_segments
    for segment in model.segments[:first]:
        x = segment(x, mode)
    for segment in model.segments[first : -1 if last else None]:
        x, backward = segment.forward(x, mode, consume)
        backwards.append(backward)

    if last:
        x, backward = forward_stored(last, x, mode, consume)
        value, logits = x, last.logits
        x, d_x = backward(x, tf.ones_like(value))
    else:
        logits = mode.invalidate_out_of_range(x)
        with tf.GradientTape() as tape:
            tape.watch(logits)
            value = loss(logits)
        d_x = tape.gradient(value, logits)
    for backward in reversed(backwards):
        x, d_x = backward(x, d_x)
    return value, logits
