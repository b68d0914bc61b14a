"""Dynamic loss scaling for float16, which would round small gradients to 0."""

from __future__ import annotations

import tensorflow as tf

SMALLEST = 1.0  # scale; a window that overflows at it has diverged


class LossScale(tf.Module):
    """A dynamic loss scale (Micikevicius et al. 2018, arXiv:1710.03740). Create it inside the strategy's scope.

    It is halved after each window that overflows, and doubled after `growth_every` updates in a row.

    Args:
        initial: the first scale.
        growth_every: number of updates.

    Attributes:
        value: the scale, a float32 scalar.
        skipped: int64 scalar, number of windows that made no update: those that overflowed, and those without examples.
    """

    def __init__(self, initial: float, growth_every: int):
        super().__init__()
        self._growth_every = growth_every
        self.value = tf.Variable(initial, trainable=False, dtype=tf.float32, name="loss_scale")
        self.skipped = tf.Variable(0, trainable=False, dtype=tf.int64, name="skipped")
        self._updates = tf.Variable(0, trainable=False, dtype=tf.int64, name="updates_at_this_scale")

    def after_update(self) -> None:
        """Counts an update, and doubles the scale if it is due. Call it in replica context, on all replicas."""
        updates = self._updates + 1
        due = updates >= self._growth_every
        self._updates.assign(tf.where(due, tf.zeros_like(updates), updates))
        value = tf.convert_to_tensor(self.value)
        doubled = tf.where(tf.math.is_finite(2.0 * value), 2.0 * value, value)
        self.value.assign(tf.where(due, doubled, value))

    def after_skip(self, examples: tf.Tensor) -> None:
        """Counts a window that made no update, and halves the scale. Call it in replica context, on all replicas.

        Args:
            examples: of the window, a scalar. Without any it has not overflowed, and the scale stays.
        """
        overflowed = examples > 0
        updates, value = tf.convert_to_tensor(self._updates), tf.convert_to_tensor(self.value)
        self._updates.assign(tf.where(overflowed, tf.zeros_like(updates), updates))
        self.value.assign(tf.where(overflowed, tf.maximum(value / 2.0, SMALLEST), value))
        self.skipped.assign_add(1)
