"""Inputs that are arrays of numbers, or nested arrays, which a model takes as they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import tensorflow as tf

from accumtrain.data.config import DataConfig
from accumtrain.data.inputs.base import Asked, Inputs
from accumtrain.data.source import ArraySplit, Dataset, unlabelled
from accumtrain.errors import ConfigError, DataError

SAMPLES = 4  # arrays to compare an export by


@dataclass(frozen=True)
class Arrays(Inputs):
    """Numbers, float32 [N, ...], or nested arrays, whose shape is ()."""

    kind: ClassVar[str] = "arrays"

    def open_named(self, named: Sequence[str], config: DataConfig, key: str) -> Asked:
        """Refuse it: a subclass reads files of its own."""
        self.check_one()
        raise ConfigError(
            f"{key}={','.join(named)}: the inputs of the run are numbers, of kind {self.kind}, which read no files; "
            "give arrays to accumtrain.load_run(...).predict, or give the data a kind of inputs whose open_named does"
        )

    def open_array(self, array: np.ndarray, config: DataConfig) -> Dataset:
        self.check_one()
        if array.shape[1:] != self.shape or not len(array):
            raise DataError(
                f"the inputs have the shape {list(array.shape)}: the model was trained on numbers "
                f"[N, {', '.join(map(str, self.shape))}]; give such"
            )
        return unlabelled(ArraySplit(array.astype(np.float32), np.arange(len(array))), self)

    @property
    def signature(self) -> tf.TensorSpec:
        return tf.TensorSpec([None, *self.shape], tf.float32, "inputs")

    def samples(self) -> list[np.ndarray]:
        return [np.random.default_rng(0).standard_normal([SAMPLES, *self.shape], np.float32)]
