"""`Objective`: the targets, the loss and the metrics of the examples of a data set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from accumtrain.config.schema import Config
from accumtrain.data.inputs.base import Inputs
from accumtrain.data.inputs.trained_on import TrainedOn
from accumtrain.data.open_data import open_data
from accumtrain.data.source import Dataset, read_labels
from accumtrain.engine.losses import Collector, PerExample, WholeBatch
from accumtrain.errors import ConfigError
from accumtrain.fields import CLASSES
from accumtrain.registry import load
from accumtrain.runs.names import folder_of
from accumtrain.tasks.collected import Collected
from accumtrain.tasks.config import LOSSES, TASKS, LossConfig, MetricEntry, chosen_metrics

Facts = Mapping[str, Any]  # about the training examples, JSON values by name


class Report(Protocol):
    """The findings of job=evaluate in the answers of a model for a split."""

    def describe(self) -> dict[str, Any]:
        """Return its part of evaluation.json."""

    def show(self) -> None:
        """Print a table of it."""

    def draw(self, title: str, folder: Path, end: str) -> list[Path]:
        """Draw pictures into a folder, and return their files, whose names end in `end`."""


class Objective:
    """The targets that a model learns, its loss and metrics.

    Args:
        config: That of the run.
        stored: The data, with targets as they are stored.
        facts: About the training examples, as a run has kept them. None finds them in `stored`.
    """

    def __init__(self, config: Config, stored: Dataset, facts: Facts | None = None) -> None:
        self.config, self.stored = config, stored
        self.facts = self.find_facts() if facts is None else facts

    # ---- targets

    def find_facts(self) -> dict[str, Any]:
        """Return facts about the training examples, which are kept with the run, as JSON values by name."""
        return {}

    def prepare_targets(self, targets: Any) -> Any:
        """Return stored targets [n, ...] as the model learns them. Called in graphs."""
        return targets

    def make_batch(self, examples: dict[str, Any]) -> dict[str, Any]:
        """Return a batch as the model learns it. Called in graphs.

        Args:
            examples: The inputs and stored targets of n examples, their weights, float32 [n], and keys, uint64 [n].
        """
        return {**examples, "targets": self.prepare_targets(examples["targets"])}

    @property
    def target_shape(self) -> tuple[int, ...]:
        """The shape of the target of an example in a batch."""
        return () if TASKS[self.config.task.kind].targets == CLASSES else (self.stored.num_classes,)

    @property
    def class_names(self) -> list[str]:
        """The names of the model's outputs: of classes, labels or numbers; empty if they have none."""
        return self.stored.class_names

    @property
    def notes(self) -> list[str]:
        """Facts that a user should know, beside the notes of the data."""
        return []

    @property
    def data(self) -> Dataset:
        """The data with the targets that the model learns."""
        return replace(
            self.stored,
            make_batch=self.make_batch,
            class_names=self.class_names,
            notes=[*self.stored.notes, *self.notes],
        )

    @property
    def longest(self) -> Objective:
        """The same with all batches as long as the longest, to measure the memory that they take."""
        return type(self)(self.config, self.stored.longest, self.facts)

    @property
    def told_per_example(self) -> float:
        """The number of answers of a training example in the mean, by which half-lives count it."""
        return 1.0

    # ---- what a run keeps

    @property
    def asked(self) -> Inputs:
        """The inputs for which the trained model is asked to predict."""
        return self.stored.inputs

    @cached_property
    def trained_on(self) -> TrainedOn:
        """The content of inputs.json, which a run keeps of its data."""
        data = self.data
        return TrainedOn(self.asked, data.targets, data.classes, self.facts)

    # ---- the loss

    def count(self) -> list[Any]:
        """Return how often each class is there in training, for `LossConfig.for_training`."""
        return []

    @cached_property
    def loss_config(self) -> LossConfig:
        """The loss that is minimised, with the weights of the classes. Raise ConfigError if they do not fit."""
        return self.config.loss.for_training(self.class_names, self.count)

    @property
    def loss(self) -> PerExample | WholeBatch:
        """The loss that is minimised."""
        return build_loss(self.loss_config)

    @property
    def evaluated_loss(self) -> PerExample | WholeBatch:
        """The loss that evaluations measure."""
        return build_loss(self.config.loss.for_evaluation)

    def guess(self) -> dict[str, float]:
        """Return the losses by split of a model with the same answer for all examples; empty if they are not known.

        The weights of a loss, which evaluations leave out, count in that of training.
        """
        return {}

    def losses_of(self, outputs: np.ndarray) -> dict[str, float]:
        """Return the losses by split of a model with the same outputs, [K], for all examples.

        They are not known of a loss of the whole batch.
        """
        if self.config.loss.is_of_whole_batch:
            return {}
        losses = {}
        for name, split in self.stored.splits.items():
            config = self.loss_config if name == "train" else self.config.loss.for_evaluation
            stored = tf.constant(read_labels(split))
            mapped = stored if self.stored.to_target is None else self.stored.to_target(stored)
            same = tf.broadcast_to(tf.constant(outputs, tf.float32), [split.size, *outputs.shape])
            losses[name] = float(tf.reduce_mean(LOSSES.build(config)(self.prepare_targets(mapped), same)))
        return losses

    # ---- metrics

    @property
    def means(self) -> dict[str, PerExample]:
        """The means over examples that updates and evaluations measure beside the loss, by name."""
        chosen = (metric for metric in self._chosen if not metric.whole_split and metric.of_mean is None)
        return {metric.name: load(metric.function) for metric in chosen}

    def of_means(self, split: str) -> dict[str, tuple[PerExample, Callable[[float], float]]]:
        """Return the metrics of a split that are functions of a mean, by name: that of an example, that of the mean."""
        chosen = ((metric, metric.of_mean) for metric in self._chosen if metric.of_mean is not None)
        return {metric.name: (load(metric.function), load(of_mean)) for metric, of_mean in chosen}

    @property
    def further_means(self) -> dict[str, PerExample]:
        """The means that job=evaluate measures in addition, where eval.metrics is null."""
        return {}

    def collectors(self, split: str, batch: int, replicas: int, *, reports: bool) -> list[Collector]:
        """Return the collectors of the other measures of a split. Call it inside the strategy's scope.

        Args:
            batch: Examples per batch over all replicas.
            reports: `report` is called afterwards.
        """
        return [self.collect(split, batch, replicas)] if self.whole_metrics else []

    def report(self, collectors: Sequence[Collector], split: str, facts: Facts) -> Report | None:
        """Return the findings of job=evaluate on all replicas, so all workers must call it; None if there are none.

        Args:
            collectors: The collectors that `collectors` has returned for this evaluation.
            facts: Those of the run and of its answers.
        """
        return None

    def collect(self, split: str, batch: int, replicas: int, kind: Callable[..., Collected] = Collected) -> Collected:
        """Return a collector of the targets and outputs of a split, which measures `whole_metrics`."""
        return kind(
            self.whole_metrics,
            self.stored.splits[split].size,
            batch,
            replicas,
            targets=self.target_shape,
            outputs=self.stored.num_classes,
        )

    @property
    def whole_metrics(self) -> dict[str, Callable[..., float]]:
        """The metrics that are no means over examples, by name."""
        return {metric.name: load(metric.function) for metric in self._chosen if metric.whole_split}

    @property
    def _chosen(self) -> list[MetricEntry]:
        return chosen_metrics(self.config.task, self.config.loss, self.config.eval.metrics)


def build_loss(config: LossConfig) -> PerExample | WholeBatch:
    """Return the loss of `config.kind`."""
    loss: PerExample = LOSSES.build(config)
    return WholeBatch(loss, config.or_say) if LOSSES[config.kind].whole_batch else loss


def build_objective(config: Config, stored: Dataset, facts: Facts | None = None) -> Objective:
    """Return the objective of a run on its data, or on other data with the facts of the run.

    Raises:
        ConfigError: Its task was registered with something else than a class of objectives.
        DataError: The data has no such targets.
    """
    built: Any = load(TASKS[config.task.kind].build)
    if not (isinstance(built, type) and issubclass(built, Objective)):
        raise ConfigError(
            f"task={config.task.kind}: {built!r} is no subclass of accumtrain.Objective; give register_task such a "
            "class"
        )
    return built(config, stored, facts)


def open_stored(config: Config) -> Dataset:
    """Return the data of a run with the targets as they are stored. Raise what `open_data` raises."""
    targets = TASKS[config.task.kind].targets
    return open_data(config.data, config.run.seed, targets, folder_of(config), config.task.rows)


def open_objective(config: Config) -> Objective:
    """Open the data of a run. Raise what `open_data` and `build_objective` raise."""
    return build_objective(config, open_stored(config))
