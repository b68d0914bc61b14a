"""`Task`: what a model learns to say of an example, how that is measured, and how it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from accumtrain.config.schema import Config
from accumtrain.data.open_data import open_data
from accumtrain.data.source import Dataset
from accumtrain.engine.losses import Collector, PerExample
from accumtrain.registry import load
from accumtrain.tasks.collected import CollectedMetrics
from accumtrain.tasks.config import CLASSES, TASKS, MetricEntry, chosen_metrics


class Findings(Protocol):
    """The answers of a model for a split, as job=evaluate tells them."""

    def describe(self) -> dict[str, Any]:
        """Return their part of evaluation.json."""

    def show(self) -> None:
        """Print a table of them."""

    def draw(self, title: str, folder: Path, end: str) -> list[Path]:
        """Draw pictures into a folder, and return their files, whose names end in `end`."""


class Finder(Collector, Protocol):
    """A collector of job=evaluate, from which findings are made."""

    def find(self, data: Dataset, split: str) -> Findings:
        """Return the findings of the evaluation before, of all replicas, so all workers must call it."""


@dataclass(frozen=True)
class Answers:
    """The answers for some examples, as job=predict tells them.

    Attributes:
        columns: those of the CSV file, after that of the file's name.
        rows: their cells for each example.
        records: the keys of the JSON line of each example, after `file`.
        titles: those of the columns of the table on the screen, after that of the image.
        shown: their cells for each example.
        summary: the part of predict.json about all of them.
    """

    columns: list[str]
    rows: Sequence[Sequence[Any]]
    records: list[dict[str, Any]]
    titles: list[str]
    shown: list[list[str]]
    summary: dict[str, Any]


class Task:
    """A task: the targets of a run, what is measured of them, and how the answers of its model are told.

    Args:
        config: that of the run.
    """

    output = "values"  # the name of its answers, in an export

    def __init__(self, config: Config) -> None:
        self.config = config

    # ---- targets

    def fit(self, data: Dataset) -> dict[str, Any]:
        """Return facts about the training targets, as JSON values, which are kept with the run."""
        return {}

    def prepare(self, data: Dataset, facts: Mapping[str, Any]) -> Dataset:
        """Return the data with the targets that the model learns. `facts` are what `fit` returned in the training."""
        return data

    def count(self, data: Dataset) -> list[Any]:
        """Return how often each class is there in training, for `LossConfig.for_training`."""
        return []

    # ---- measures

    def metrics(self) -> dict[str, PerExample]:
        """Return what is measured beside the loss in updates and evaluations, by name: means over examples."""
        return {metric.name: load(metric.function) for metric in self._chosen if not metric.whole_split}

    def further_metrics(self, data: Dataset) -> dict[str, PerExample]:
        """Return what job=evaluate measures in addition, where eval.metrics is null."""
        return {}

    def collectors(self, data: Dataset, split: str, batch: int, replicas: int) -> list[Collector]:
        """Return what else evaluations measure. Call it inside the strategy's scope.

        Args:
            batch: examples per batch over all replicas.
        """
        whole = {metric.name: load(metric.function) for metric in self._chosen if metric.whole_split}
        count = data.num_classes
        shape = [] if TASKS[self.config.task.kind].targets == CLASSES else [count]
        size = data.splits[split].size
        return [CollectedMetrics(whole, size, batch, replicas, targets=shape, outputs=count)] if whole else []

    @property
    def _chosen(self) -> list[MetricEntry]:
        return chosen_metrics(self.config)

    # ---- answers

    def answer(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return the answers, float32 [N, K], to the outputs of a model [N, K]. Called in graphs."""
        return tf.cast(outputs, tf.float32)

    def tell(self, answers: np.ndarray, names: Sequence[str]) -> Answers:
        """Return in words the answers, float32 [N, K], for examples: each by its name.

        Args:
            names: of the K classes, labels or numbers.
        """
        values = [[round_float32(value) for value in row] for row in answers.tolist()]
        return Answers(
            columns=list(names),
            rows=values,
            records=[dict(zip(names, row, strict=True)) for row in values],
            titles=list(names),
            shown=[[f"{value:.6g}" for value in row] for row in values],
            summary={},
        )

    def finder(self, data: Dataset, replicas: int) -> Finder | None:
        """Return what collects the findings of job=evaluate. Call it inside the strategy's scope."""
        return None


def round_float32(value: float) -> float:
    """Return it with the digits that a float32 has."""
    return float(f"{value:.9g}")


def build_task(config: Config) -> Task:
    task: Task = load(TASKS[config.task.kind].build)(config)
    return task


def open_examples(config: Config) -> Dataset:
    """Return the data of a run, with the targets that its model learns. Raise what `open_data` raises."""
    task = build_task(config)
    data = open_data(config.data, config.run.seed, TASKS[config.task.kind].targets)
    return task.prepare(data, task.fit(data))
