"""Stochastic depth (Huang et al. 2016, arXiv:1603.09382): in training some examples leave out a residual function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.pullback import Gradients, Pullback


@dataclass(frozen=True)
class DropPath:
    """Multiplies the output of a residual function by 0 or 1 / (1 - rate), example by example; in evaluation by 1.

    What is drawn depends on run, update and place in the window alone, so a replay draws the same. The function is
    computed for all examples, and batch norm sees them all.

    Attributes:
        rate: probability of 0, below 1.
        number: of the residual function in its model; each has its own draws.
    """

    rate: float
    number: int

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        return x * self._factor(x, mode) if mode.training else x

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        factor = self._factor(x, mode)

        def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
            return d_y * factor, []

        return x * factor, backward

    def _factor(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        """[N, 1, 1, 1], in the dtype of x."""
        if mode.draws is None:
            raise ValueError("model.drop_path needs Mode(draws=...): the random numbers of the examples")
        kept = tf.cast(mode.draws(self.number) >= self.rate, x.dtype)
        return tf.reshape(kept, [-1, 1, 1, 1]) / tf.cast(1.0 - self.rate, x.dtype)


def drop_paths(rate: float, count: int) -> Iterator[DropPath | None]:
    """One for each of `count` residual functions; the rate rises linearly to `rate`. None for each if that is 0."""
    for number in range(count):
        yield DropPath(rate * (number + 1) / count, number) if rate else None
