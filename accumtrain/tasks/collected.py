"""The targets and outputs of a whole split, and metrics of them that are no means over examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.engine.losses import Batch, example_weights
from accumtrain.engine.replica import current_replica
from accumtrain.engine.sums import sum_buffer
from accumtrain.errors import ConfigError


class Collected:
    """The targets and outputs of all examples of a split, and metrics of them. Create it inside the strategy's scope.

    Each replica has room for the targets and outputs of the whole split, 4 bytes a number. It writes its own part and
    leaves the others 0, so the sum over replicas has the parts of all.

    Args:
        functions: NumPy arrays of targets and outputs, float32 [N] or [N, K] -> a number, by name.
        size: examples of the split.
        batch: examples of a batch over all replicas.
        replicas: of all workers.
        targets: shape of the targets of an example.
        outputs: number of outputs of an example.

    Attributes:
        targets, outputs: those of the last evaluation, of the examples that could be read, in the split's order.
    """

    def __init__(
        self,
        functions: Mapping[str, Callable[[Any, Any], float]],
        size: int,
        batch: int,
        replicas: int,
        *,
        targets: Sequence[int],
        outputs: int,
    ) -> None:
        self._functions, self._replicas, self._shape = dict(functions), replicas, tuple(targets)
        columns = 1 + int(np.prod(targets, dtype=int)) + outputs  # the first is 1 for an example that is used
        self._made = sum_buffer([], tf.int64)
        self._rows = sum_buffer([-(-size // batch) * replicas, batch // replicas, columns], tf.float32)
        self.targets = self.outputs = np.zeros([0], np.float32)
        self.facts: dict[str, Any] = {}

    @property
    def names(self) -> list[str]:
        return list(self._functions)

    @property
    def variables(self) -> list[tf.Variable]:
        return [self._made, self._rows]

    def update(self, batch: Batch, outputs: tf.Tensor) -> None:
        """Keep the part of a batch that a replica has. Replicas take turns in the order of the split."""
        used = tf.cast(example_weights(batch) > 0, tf.float32)
        parts = [used[:, tf.newaxis], *(tf.reshape(part, [tf.size(used), -1]) for part in (batch["targets"], outputs))]
        rows = tf.concat([tf.cast(part, tf.float32) for part in parts], axis=1)
        replica, _ = current_replica()
        index = tf.convert_to_tensor(self._made) * self._replicas + tf.cast(replica, tf.int64)
        # in place: to assign the whole would copy the split with every batch
        tf.raw_ops.ResourceScatterUpdate(resource=self._rows.handle, indices=index, updates=rows)
        self._made.assign_add(tf.constant(1, tf.int64))

    @tf.function(autograph=False)
    def reset(self) -> None:
        self._made.assign(tf.zeros([], tf.int64))

    def take(self) -> dict[str, float]:
        """Return the metrics of the evaluation that has ended. Raise ConfigError if one is no number."""
        rows = self._read().numpy().reshape(-1, self._rows.shape[-1])
        self.reset()
        rows = rows[rows[:, 0] > 0]
        split = 1 + int(np.prod(self._shape, dtype=int))
        self.targets = self.convert(rows[:, 1:split].reshape(-1, *self._shape))
        self.outputs = self.convert(rows[:, split:])
        values = {name: function(self.targets, self.outputs) for name, function in self._functions.items()}
        for name, value in values.items():
            if np.shape(value):
                raise ConfigError(
                    f"eval.metrics: {name} returns values of the shape {list(np.shape(value))}; a metric of a whole "
                    "split returns one number"
                )
        return {name: float(value) for name, value in values.items()}

    def convert(self, rows: np.ndarray) -> np.ndarray:
        """Return targets or outputs as the metrics take them."""
        return rows

    @tf.function(autograph=False)
    def _read(self) -> tf.Tensor:
        return tf.convert_to_tensor(self._rows)
