"""task=regress: each example has a number, or several. The model learns them in standard deviations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, TypedDict

import numpy as np
import tensorflow as tf

from accumtrain.data.inputs.pixels import MOVES, Pixels
from accumtrain.data.source import read_labels
from accumtrain.data.targets.numbers import find_rounding
from accumtrain.engine.losses import Collector, PerExample
from accumtrain.errors import DataError
from accumtrain.fields import POSITIVE
from accumtrain.report.answers import NumberReport, NumberResult, Numbers
from accumtrain.tasks import scores
from accumtrain.tasks.answer import Answer
from accumtrain.tasks.collected import Collected
from accumtrain.tasks.config import HuberConfig, LossConfig
from accumtrain.tasks.objective import Facts, Objective

MEAN, STD = "mean", "std"  # facts: of each number, over the training examples


class Regress(Objective):
    """Numbers are learned, in standard deviations from their means."""

    def find_facts(self) -> dict[str, Any]:
        """Return mean and standard deviation of each number.

        Raises:
            DataError: a number is the same for all training examples, or unknown for all; or float32 rounds it to few
                values.
        """
        numbers = read_labels(self.stored.train).astype(np.float64)
        for name, column in zip(self.stored.classes, numbers.T, strict=True):
            known = column[~np.isnan(column)]
            if not known.size or np.ptp(known) == 0:
                fault = f"is {known[0]:g} for all training examples that have it" if known.size else "is never known"
                raise DataError(
                    f"{name} {fault}, so there is nothing to learn: leave its column out, or give other examples"
                )
            if fault := find_rounding(known):
                raise DataError(f"{name} {fault}")
        mean, std = np.nanmean(numbers, axis=0), np.nanstd(numbers, axis=0)
        return {MEAN: mean.tolist(), STD: std.tolist()}

    def prepare_targets(self, targets: tf.Tensor) -> tf.Tensor:
        """Return numbers in standard deviations from the mean."""
        mean, std = (np.array(self.facts[name]) for name in (MEAN, STD))
        return tf.cast((tf.cast(targets, tf.float64) - mean) / std, tf.float32)

    @property
    def notes(self) -> list[str]:
        augment = self.config.data.augment
        if augment not in MOVES or not isinstance(self.stored.inputs, Pixels):
            return []
        return [
            f"data.augment={augment} moves training images and leaves their numbers as they are: leave it out where a "
            "number is a position or a direction"
        ]

    def guess(self) -> dict[str, float]:
        """Return the losses by split of a model that predicts the means of the training examples."""
        return self.losses_of(np.zeros(self.stored.num_classes))

    def collectors(self, split: str, batch: int, replicas: int, *, reports: bool) -> list[Collector]:
        """Return what collects numbers in the user's units."""
        if not self.whole_metrics and not reports:
            return []
        return [self.collect(split, batch, replicas, partial(InUnits, self.facts))]

    def report(self, collectors: Sequence[Collector], split: str, facts: Facts) -> NumberReport:
        (found,) = (collector for collector in collectors if isinstance(collector, InUnits))
        return report_numbers(self.stored.classes, found.targets, found.outputs)


class NumberFacts(TypedDict):
    mean: list[float]
    std: list[Annotated[float, POSITIVE]]


class NumberAnswer(Answer):
    """The numbers in the user's units."""

    unit_name = " standard deviations"
    facts_type = NumberFacts

    def __call__(self, inputs: Any, outputs: tf.Tensor) -> tf.Tensor:
        mean, std = (tf.constant(self.facts[name], tf.float32) for name in (MEAN, STD))
        return tf.cast(outputs, tf.float32) * std + mean

    @property
    def unit(self) -> np.ndarray:
        """The standard deviations."""
        return np.array(self.facts[STD])

    def keras_layer(self) -> Any:
        import keras

        return keras.layers.Rescaling(self.facts[STD], self.facts[MEAN], name=self.name)


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


def report_numbers(names: Sequence[str], numbers: np.ndarray, found: np.ndarray) -> NumberReport:
    """Return the report of true numbers, [N, K] in the user's units and NaN where unknown, and of those found."""
    measures = (scores.absolute_error, scores.root_squared_error, scores.determination)
    errors = [scores.errors_of(measure, numbers, found).tolist() for measure in measures]
    known = (~np.isnan(numbers)).sum(axis=0).tolist()
    results = [
        NumberResult(name, count, *(None if np.isnan(value) else value for value in values))
        for name, count, *values in zip(names, known, *errors, strict=True)
    ]
    return NumberReport(results, [Numbers(*column) for column in zip(names, numbers.T, found.T, strict=True)])
