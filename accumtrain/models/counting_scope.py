"""A stateless call of a Keras model that knows how often each variable is read and assigned."""

from __future__ import annotations

from collections import Counter
from typing import Any

import keras
import tensorflow as tf


class CountingScope(keras.StatelessScope):
    """A stateless scope that counts, by the id of each variable, how often it is assigned and read."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.assignments: Counter[int] = Counter()
        self.reads: Counter[int] = Counter()

    def add_update(self, update: tuple[keras.Variable, tf.Tensor]) -> None:
        self.assignments[id(update[0])] += 1
        super().add_update(update)

    def get_current_value(self, variable: keras.Variable) -> tf.Tensor | None:
        self.reads[id(variable)] += 1
        return super().get_current_value(variable)
