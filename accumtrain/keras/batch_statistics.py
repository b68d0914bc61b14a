"""The moving statistics of batch normalisation after a batch that was computed in micro-batches.

Each micro-batch starts from the same moving statistics, and moves them towards its own by a share of 1 - momentum. The
mean of these moves is the move by the whole batch, but for the variance between micro-batches, which is added.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from accumtrain.models.keras_call import StatelessCall, normalisations, read_values


class BatchStatistics:
    """The batch normalisations of a model, before a batch.

    Attributes:
        before: each moving statistic with its value, [channels].

    Raises:
        ValueError: one is synchronized between several replicas, which can't meet inside a loop, or has renorm=True.
    """

    def __init__(self, model: keras.Model) -> None:
        self._layers = normalisations(model)
        if renormed := [each.name for each in self._layers if getattr(each, "renorm", False)]:
            raise ValueError(f"{renormed[0]} has renorm=True, which can't be computed in micro-batches: leave it out")
        if tf.distribute.get_strategy().num_replicas_in_sync > 1 and any(each.synchronized for each in self._layers):
            raise ValueError("BatchNormalization(synchronized=True) can't be computed in micro-batches on replicas")
        self.before = read_values(v for each in self._layers for v in _statistics(each))

    def zeros(self) -> list[Any]:
        """For each layer, the sums to begin with: moves of the mean, of the variance, squared moves of the mean."""
        return [[tf.zeros_like(value) for value in (mean, variance, mean)] for mean, variance in self._values()]

    def add(self, sums: list[Any], part: tf.Tensor, call: StatelessCall) -> list[Any]:
        """Adds a micro-batch.

        Args:
            part: its share of the examples.
            call: its forward pass, which holds the statistics it left.

        Raises:
            ValueError: a layer has normalised several batches in one pass, so that its move is not towards one.
        """
        added = []
        for layer, totals, before in zip(self._layers, sums, self._values(), strict=True):
            if (calls := call.assignments[id(layer.moving_mean)]) > 1:
                raise ValueError(
                    f"{layer.name} is called {calls} times in one pass, so its moving variance can't be that of the "
                    "whole batch: take a BatchNormalization for each call, or fit with the micro-batch and "
                    "compile(optimizer=Accumulate(optimizer, steps))"
                )
            after = map(call.get_current_value, _statistics(layer))
            mean, variance = (new - old for new, old in zip(after, before, strict=True))
            share = tf.cast(part, mean.dtype)
            moves = (mean, variance, tf.square(mean))
            added.append([total + share * move for total, move in zip(totals, moves, strict=True)])
        return added

    def write(self, sums: list[Any]) -> None:
        """Assigns the moving statistics after the whole batch."""
        for layer, (mean, variance, squared_mean), before in zip(self._layers, sums, self._values(), strict=True):
            between = tf.math.divide_no_nan(squared_mean - tf.square(mean), tf.cast(1.0 - layer.momentum, mean.dtype))
            layer.moving_mean.assign(before[0] + mean)
            layer.moving_variance.assign(before[1] + variance + between)

    def _values(self) -> list[list[tf.Tensor]]:
        values = [value for _, value in self.before]
        return [values[place : place + 2] for place in range(0, len(values), 2)]


def _statistics(layer: keras.layers.BatchNormalization) -> tuple[keras.Variable, keras.Variable]:
    return layer.moving_mean, layer.moving_variance
