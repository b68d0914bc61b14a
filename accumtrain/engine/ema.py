"""Exponential moving average of the weights, counted in updates (Polyak & Juditsky 1992)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import tensorflow as tf

from accumtrain.optim.optimizer import in_sequence
from accumtrain.optim.per_shape import PerShapeFunction, VariableHandle


class MovingAverage(tf.Module):
    """average <- d * average + (1 - d) * weight, with d = min(decay, (1 + t) / (10 + t)) at update t from 1.

    The early d lets the average forget the random start soon, as in tf.train.ExponentialMovingAverage with
    `num_updates`.
    """

    def __init__(self, weights: Sequence[tf.Variable], decay: float):
        super().__init__()
        self.weights, self.decay = list(weights), decay
        self.averages = [tf.Variable(weight, trainable=False, name="average") for weight in self.weights]
        self._blend_one = PerShapeFunction(self._blend)

    def update(self, step: tf.Tensor) -> None:
        """Takes in the weights as they stand; `step` int64 is the number of updates before this one."""
        update = tf.cast(step, tf.float32) + 1.0
        decay = tf.minimum(self.decay, (1.0 + update) / (10.0 + update))
        in_sequence(
            partial(self._blend_one, {"average": average, "weight": weight}, tf.cast(1.0 - decay, weight.dtype))
            for average, weight in zip(self.averages, self.weights, strict=True)
        )

    @staticmethod
    def _blend(variables: Mapping[str, VariableHandle], share: tf.Tensor) -> None:
        average, weight = variables["average"], variables["weight"]
        average.assign_add((weight.read() - average.read()) * share)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within, the model computes with the averages. Exact: values are exchanged, and exchanged back."""
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
