"""Exponential moving average of the weights, counted in updates (Polyak & Juditsky 1992)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import tensorflow as tf

from accumtrain.optim.optimizer import PerShapeFunction, VariableHandle, apply_one_by_one
from accumtrain.optim.running_mean import HalfLife


class MovingAverage(tf.Module):
    """Moving averages: d * average + (1 - d) * weight, with d = min(decay, (1 + t) / (10 + t)) at update t = 1, ...

    The smaller d of the first updates makes the average forget the initial weights soon, as in
    tf.train.ExponentialMovingAverage with `num_updates`. Create it inside the strategy's scope.

    Args:
        weights: float32 or float64; each average has the dtype of its weight, and begins with its value.
        decay: 0 <= decay < 1; or a half-life, by which it follows the batch of `follow`.

    Raises:
        ValueError: decay is out of its range.
    """

    def __init__(self, weights: Sequence[tf.Variable], decay: float | HalfLife):
        super().__init__()
        self._half_life = decay if isinstance(decay, HalfLife) else None
        self.decay = 0.0 if isinstance(decay, HalfLife) else decay
        if not 0.0 <= self.decay < 1.0:
            raise ValueError(f"decay={decay}: must be at least 0 and below 1")
        self.weights = list(weights)
        self.averages = [tf.Variable(weight, trainable=False, name="average") for weight in self.weights]
        self._blend_one = PerShapeFunction(self._blend)

    def follow(self, batch: int) -> bool:
        """Let a half-life follow the examples of an update. Return whether `update` is to be traced again."""
        before = self.decay
        if self._half_life is not None:
            self.decay = self._half_life.share(batch)
        return self.decay != before

    def update(self, step: tf.Tensor) -> None:
        """Update the averages by the current weights. `step`: number of updates before this one, an int64 scalar."""
        # 1 - d, subtracted in float64: in float32 a decay near 1 would leave few digits of it, or none
        shares = {
            dtype: tf.maximum(tf.constant(1.0 - self.decay, dtype), 9.0 / (10.0 + tf.cast(step + 1, dtype)))
            for dtype in {weight.dtype for weight in self.weights}
        }
        apply_one_by_one(
            partial(self._blend_one, {"average": average, "weight": weight}, shares[weight.dtype])
            for average, weight in zip(self.averages, self.weights, strict=True)
        )

    @staticmethod
    def _blend(variables: Mapping[str, VariableHandle], share: tf.Tensor) -> None:
        average, weight = variables["average"], variables["weight"]
        average.assign_add((weight.read() - average.read()) * share)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model compute with the averages. The values are swapped, so no bit is lost."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for average, weight in zip(self.averages, self.weights, strict=True):
            value = tf.identity(weight)
            weight.assign(average)
            average.assign(value)
