"""Inputs that are arrays of numbers, or nested arrays, which a model takes as they are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, cast

import numpy as np
import tensorflow as tf

from accumtrain.console import format_things
from accumtrain.data.config import DataConfig, TableConfig
from accumtrain.data.inputs.base import Asked, Inputs
from accumtrain.data.local_files import find_paths
from accumtrain.data.source import ArraySplit, Dataset, Split, unlabelled
from accumtrain.data.table.columns import read_named_numbers
from accumtrain.data.table.others import read_others
from accumtrain.data.targets.numbers import NORMAL
from accumtrain.errors import ConfigError, DataError
from accumtrain.fields import POSITIVE, format_value, normal_form

SAMPLES = 4  # arrays to compare an export by


@dataclass(frozen=True)
class Arrays(Inputs):
    """Numbers, float32 [N, ...], or nested arrays, whose shape is ().

    Attributes:
        columns: The names of the columns of a table that they are; empty of others.
        mean: That of each column in the rows to train on.
        std: Likewise, its standard deviation; 1 of a column with a single value. The model takes (x - mean) / std.
    """

    kind: ClassVar[str] = "arrays"
    alike: ClassVar[str] = "number for number"

    columns: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()
    std: tuple[Annotated[float, POSITIVE], ...] = ()

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], config: DataConfig) -> Arrays:
        """Return the inputs of a trained run. Raise ConfigError for facts of another number of columns, too."""
        found = cast(Arrays, super().from_facts(facts, config))
        last = found.shape[-1] if found.shape else 0
        for name in ("columns", "mean", "std"):
            given = getattr(found, name)
            if len(given) not in (0, last) or len(found.mean) != len(found.std):
                raise ConfigError(
                    f"inputs.{name}: must have {last} values, the last size of the shape, and has {len(given)}"
                )
        return found

    def fitted(self, train: Split) -> Arrays:
        """Return them with mean and standard deviation of the rows to train on, if they are columns of a table.

        Raises:
            DataError: A deviation is too small to divide by.
        """
        if not self.columns:
            return self
        values = train.read(tf.range(train.size, dtype=tf.int64))[0].numpy().astype(np.float64)
        std = values.std(axis=0)
        small = (std > 0) & (std < NORMAL)
        if small.any():
            at = int(np.argmax(small))
            raise DataError(
                f"column {self.columns[at]} has the standard deviation {std[at]:.3g}, and float32 can't divide by less "
                f"than {NORMAL:.3g}: multiply its numbers, so that they differ by about 1, in rows to predict, too"
            )
        return replace(self, mean=tuple(values.mean(axis=0).tolist()), std=tuple(np.where(std > 0, std, 1.0).tolist()))

    def batch(self, inputs: Any, key: tf.Tensor | None, *, training: bool) -> Any:
        return (inputs - np.array(self.mean, np.float32)) / np.array(self.std, np.float32) if self.mean else inputs

    @property
    def is_checked(self) -> bool:
        return bool(self.columns)

    def describe(self) -> str:
        return format_things(len(self.columns), "number") if self.columns else super().describe()

    def adapt(self, config: DataConfig) -> DataConfig:
        """Return the keys that name the columns of the run, which are found by their names."""
        if not (self.columns and isinstance(config, TableConfig) and config.text_column is None):
            return config
        given = config.number_columns or []
        if given != config.ALL and any(
            isinstance(name, str) and normal_form(name) not in self.columns for name in given
        ):
            raise ConfigError(
                f"data.number_columns={format_value(given)}: the run has learned from {', '.join(self.columns)}, "
                "columns that are found by their names; leave data.number_columns out, and call the columns of the "
                "table so"
            )
        return replace(config, number_columns=[*self.columns])

    def open_named(self, named: Sequence[str], config: DataConfig, key: str) -> Asked:
        """Return the rows of tables, if the inputs are columns of one. Otherwise a subclass reads files of its own."""
        self.check_one()
        if isinstance(config, TableConfig) and self.columns:
            paths = [path for text in named for path in find_paths(text, key)]
            tables = [read_named_numbers(path, key, self.columns, config) for path in paths]
            others = [read_others(path, key, self.columns, header=config.header) for path in paths]
            data = self.open_array(np.concatenate([numbers for _, numbers in tables]), config)
            return Asked(
                [row for rows, _ in tables for row in rows],
                replace(data, notes=[*data.notes, *(note for _, notes in others for note in notes)]),
                [],
                [row for rows, _ in others for row in rows],
            )
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
