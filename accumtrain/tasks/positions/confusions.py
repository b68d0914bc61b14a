"""The confusions of the classes of positions, counted over an evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.engine.losses import Batch, example_weights
from accumtrain.engine.sums import sum_buffer


class ConfusionCounter:
    """Counts the confusions of positions, and measures them. Create it inside the strategy's scope.

    Args:
        metrics: confusions, int64 [C, C] -> a number, by name.
        classes: their number, C. The memory taken is 8 bytes * C^2 on each replica.

    Attributes:
        found: the confusions of the last evaluation.
    """

    def __init__(self, metrics: Mapping[str, Callable[..., float]], classes: int):
        self._metrics, self._classes = dict(metrics), classes
        self._counts = sum_buffer([classes * classes], tf.int64)
        self.found = np.zeros([classes, classes], np.int64)
        self.facts: dict[str, Any] = {}

    @property
    def names(self) -> Sequence[str]:
        return list(self._metrics)

    @property
    def variables(self) -> list[tf.Variable]:
        return [self._counts]

    def update(self, batch: Batch, outputs: tf.Tensor) -> None:
        """Add the part of a batch that a replica has: classes [N, ...], below 0 for none, and logits [N, ..., C]."""
        used = tf.reshape(example_weights(batch) > 0, [-1, *[1] * (batch["targets"].shape.rank - 1)])
        known = used & (batch["targets"] >= 0)
        true, predicted = (tf.cast(each, tf.int64) for each in (batch["targets"], tf.argmax(outputs, axis=-1)))
        cells = tf.where(known, true * self._classes + predicted, -1)  # which are left out
        ones = tf.ones_like(cells)
        self._counts.assign_add(tf.math.unsorted_segment_sum(ones, cells, self._classes**2))

    @tf.function(autograph=False)
    def reset(self) -> None:
        self._counts.assign(tf.zeros_like(self._counts))

    def take(self) -> dict[str, float]:
        """Return the metrics of the evaluation that has ended."""
        self.found = self._read().numpy().reshape(self._classes, self._classes)
        self.reset()
        return {name: float(metric(self.found)) for name, metric in self._metrics.items()}

    @tf.function(autograph=False)
    def _read(self) -> tf.Tensor:
        return tf.convert_to_tensor(self._counts)
