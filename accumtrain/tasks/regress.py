"""task=regress: each image has a number, or several. The model learns them in standard deviations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.config.jobs import cell
from accumtrain.console import table
from accumtrain.data.inputs.pixels import Pixels
from accumtrain.data.source import Dataset, read_labels
from accumtrain.engine.losses import Collector, PerExample
from accumtrain.errors import DataError
from accumtrain.report.answers import Numbers, draw_numbers
from accumtrain.tasks import scores
from accumtrain.tasks.collected import Collected
from accumtrain.tasks.config import HuberConfig, LossConfig
from accumtrain.tasks.task import Facts, Task

MEAN, STD = "mean", "std"  # facts: of each number, over the training examples
PICTURE = "numbers"  # without its ending
FEWEST_STEPS = 100  # of float32 between the smallest and the largest number
MOVES = ("shift", "crop_flip", "inception")  # values of data.augment


class Regress(Task):
    """Numbers are said, in the user's units."""

    unit = " standard deviations"

    def fit(self, data: Dataset) -> dict[str, Any]:
        """Return mean and standard deviation of each number.

        Raises:
            DataError: a number is the same for all training examples, or unknown for all; or float32 rounds it to few
                values.
        """
        numbers = read_labels(data.train).astype(np.float64)
        for name, column in zip(data.classes, numbers.T, strict=True):
            known = column[~np.isnan(column)]
            if not known.size or np.ptp(known) == 0:
                fault = f"is {known[0]:g} for all training examples that have it" if known.size else "is never known"
                raise DataError(
                    f"{name} {fault}, so there is nothing to learn: leave its column out, or give other examples"
                )
            low, high = known.min(), known.max()
            if high - low < FEWEST_STEPS * np.spacing(np.float32(max(-low, high))):
                raise DataError(
                    f"{name} is between {low:.9g} and {high:.9g}, and float32 has too few values there to tell its "
                    f"numbers apart: subtract {low:.9g} from all of them"
                )
        mean, std = np.nanmean(numbers, axis=0), np.nanstd(numbers, axis=0)
        return {MEAN: mean.tolist(), STD: std.tolist()}

    def prepare(self, data: Dataset, facts: Facts) -> Dataset:
        """Return the data with numbers in standard deviations from the mean."""
        mean, std = (np.array(facts[name]) for name in (MEAN, STD))

        def standardise(numbers: tf.Tensor) -> tf.Tensor:
            stored = tf.cast(numbers if data.to_target is None else data.to_target(numbers), tf.float64)
            return tf.cast((stored - mean) / std, tf.float32)

        notes = list(data.notes)
        if self.config.data.augment in MOVES and isinstance(data.inputs, Pixels):
            notes.append(
                f"data.augment={self.config.data.augment} moves training images and leaves their numbers as they are: "
                "leave it out where a number is a place or a direction"
            )
        return replace(super().prepare(data, facts), to_target=standardise, notes=notes)

    def guess(self, data: Dataset) -> dict[str, float]:
        """Return the losses by split of a model that says the means of the training examples."""
        return self.losses_of(np.zeros(data.num_classes), data)

    def answer(self, outputs: tf.Tensor, facts: Facts) -> tf.Tensor:
        """Return the numbers in the user's units."""
        mean, std = (tf.constant(facts[name], tf.float32) for name in (MEAN, STD))
        return tf.cast(outputs, tf.float32) * std + mean

    def measure_unit(self, facts: Facts) -> np.ndarray:
        """Return the standard deviations."""
        return np.array(facts[STD])

    def keras_layer(self, facts: Facts) -> Any:
        import keras

        return keras.layers.Rescaling(facts[STD], facts[MEAN], name=self.output)

    def collectors(self, data: Dataset, split: str, batch: int, replicas: int, *, finding: bool) -> list[Collector]:
        """Return what collects numbers in the user's units."""
        if not self._whole_metrics and not finding:
            return []
        return [self._collect(data, split, batch, replicas, partial(InUnits, data.task_facts))]

    def find(self, collectors: Sequence[Collector], data: Dataset, split: str, facts: Facts) -> NumberFindings:
        (found,) = (collector for collector in collectors if isinstance(collector, InUnits))
        return NumberFindings(data.classes, found.targets, found.outputs)


class InUnits(Collected):
    """Collects numbers and outputs, and gives both in the user's units."""

    def __init__(self, facts: Facts, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._mean, self._std = (np.array(facts[name]) for name in (MEAN, STD))

    def convert(self, rows: np.ndarray) -> np.ndarray:
        return rows.astype(np.float64) * self._std + self._mean


# ---- losses: functions of numbers and outputs, [N, K] in standard deviations, to values [N] ----


def _of_known(function: Callable[[tf.Tensor], tf.Tensor]) -> PerExample:
    """Return a loss by a function of errors, [N, K]: the sum over known numbers by K."""

    def loss(numbers: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        known = ~tf.math.is_nan(numbers)
        errors = tf.where(known, outputs - tf.cast(numbers, outputs.dtype), tf.zeros_like(outputs))
        return tf.reduce_mean(function(errors), axis=-1)

    return loss


def build_squared_error(config: LossConfig) -> PerExample:
    return _of_known(tf.square)


def build_absolute_error(config: LossConfig) -> PerExample:
    return _of_known(tf.abs)


def build_huber(config: HuberConfig) -> PerExample:
    delta = config.delta

    def huber(errors: tf.Tensor) -> tf.Tensor:
        size = tf.abs(errors)
        return tf.where(size <= delta, 0.5 * tf.square(errors), delta * (size - 0.5 * delta))

    return _of_known(huber)


# ---- what job=evaluate finds ----


@dataclass(frozen=True)
class NumberResult:
    """The errors of a number, over the examples of which it is known. None without such, and R2 without a spread."""

    name: str
    examples: int
    mae: float | None
    rmse: float | None
    r2: float | None


@dataclass(frozen=True)
class NumberFindings:
    """The numbers [N, K] of a split and those that the model says, in the user's units."""

    names: list[str]
    numbers: np.ndarray
    found: np.ndarray

    @property
    def results(self) -> list[NumberResult]:
        measures = (scores.absolute_error, scores.root_squared_error, scores.determination)
        errors = [scores.errors_of(measure, self.numbers, self.found).tolist() for measure in measures]
        known = (~np.isnan(self.numbers)).sum(axis=0).tolist()
        return [
            NumberResult(name, count, *(None if np.isnan(value) else value for value in values))
            for name, count, *values in zip(self.names, known, *errors, strict=True)
        ]

    def describe(self) -> dict[str, Any]:
        return {"numbers": [asdict(result) for result in self.results]}

    def show(self) -> None:
        rows = []
        for result in self.results:
            errors = (cell(value, ".6g") for value in (result.mae, result.rmse, result.r2))
            rows.append((result.name, f"{result.examples:,}", *errors))
        table("numbers", ("number", "examples", "MAE", "RMSE", "R2"), rows)

    def draw(self, title: str, folder: Path, end: str) -> list[Path]:
        """Draw what the model says against what is true."""
        picture = folder / f"{PICTURE}{end}.png"
        columns = zip(self.names, self.numbers.T, self.found.T, strict=True)
        draw_numbers([Numbers(*column) for column in columns], title, picture)
        return [picture]
