"""The loss scale of float16: gradients below its smallest number are lost unless the loss is multiplied first."""

from __future__ import annotations

import tensorflow as tf

SMALLEST = 1.0


class LossScale(tf.Module):
    """Halved after each window that overflowed, doubled after `growth_every` updates in a row.

    Micikevicius et al. 2018, arXiv:1710.03740. Create it inside the strategy's scope.

    Args:
        initial: the first scale.
        growth_every: updates.

    Attributes:
        value: float32 scalar.
        skipped: int64 scalar, windows that overflowed and made no update. They took their examples from the stream.
    """

    def __init__(self, initial: float, growth_every: int):
        super().__init__()
        self._growth_every = growth_every
        self.value = tf.Variable(initial, trainable=False, dtype=tf.float32, name="loss_scale")
        self.skipped = tf.Variable(0, trainable=False, dtype=tf.int64, name="skipped")
        self._updates = tf.Variable(0, trainable=False, dtype=tf.int64, name="updates_at_this_scale")

    def updated(self) -> None:
        """After an update. In replica context, the same on all replicas."""
        updates = self._updates + 1
        due = updates >= self._growth_every
        self._updates.assign(tf.where(due, tf.zeros_like(updates), updates))
        value = tf.convert_to_tensor(self.value)
        doubled = tf.where(tf.math.is_finite(2.0 * value), 2.0 * value, value)
        self.value.assign(tf.where(due, doubled, value))

    def overflowed(self) -> None:
        """After a window that made no update. In replica context, the same on all replicas."""
        self._updates.assign(tf.zeros_like(tf.convert_to_tensor(self._updates)))
        self.value.assign(tf.maximum(self.value / 2.0, SMALLEST))
        self.skipped.assign_add(1)
