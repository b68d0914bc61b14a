"""`Task`: what a model predicts of an example, how that is measured, and how it is reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from accumtrain.config.schema import Config
from accumtrain.data.local_files import list_named_images
from accumtrain.data.open_data import open_data
from accumtrain.data.source import ArraySplit, Dataset, PlainData, read_labels
from accumtrain.data.sources.folder import open_files
from accumtrain.data.text.unlabelled import open_texts, open_token_rows
from accumtrain.engine.losses import Collector, PerExample
from accumtrain.errors import ConfigError, DataError
from accumtrain.registry import load
from accumtrain.runs.run import Images
from accumtrain.tasks.collected import Collected
from accumtrain.tasks.config import CLASSES, LOSSES, TASKS, LossConfig, MetricEntry, chosen_metrics


@dataclass(frozen=True)
class ToPredict:
    """Inputs without targets: a name for each, the data whose test split they are, and the names of ignored files."""

    names: list[str]
    data: Dataset
    ignored: list[str] = field(default_factory=list)


class Findings(Protocol):
    """The answers of a model for a split, as job=evaluate tells them."""

    def describe(self) -> dict[str, Any]:
        """Return their part of evaluation.json."""

    def show(self) -> None:
        """Print a table of them."""

    def draw(self, title: str, folder: Path, end: str) -> list[Path]:
        """Draw pictures into a folder, and return their files, whose names end in `end`."""


Facts = Mapping[str, Any]  # about the training examples, from `Task.fit`, and about answers, from `Collector.facts`


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
    """A task: the targets of a run, what is measured of them, and how the answers of its model are reported.

    Args:
        config: that of the run.
    """

    output = "values"  # the name of its answers, in an export
    unit = ""  # of a difference of answers, in words

    def __init__(self, config: Config) -> None:
        self.config = config

    # ---- inputs

    def read_inputs(self, text: str) -> tuple[Sequence[str], np.ndarray]:
        """Return the inputs that predict.input names, if they are no images: a name for each, and all, [N, ...].

        Raises:
            ConfigError: the task reads none.
        """
        kind = self.config.task.kind
        raise ConfigError(
            f"predict.input={text}: task={kind} has no read_inputs, which reads such inputs; add it to "
            f"{type(self).__name__}"
        )

    def take(self, inputs: Any, facts: Facts) -> Any:
        """Return what the model takes of inputs that are no images, [N, ...], as they are stored. Called in graphs."""
        return inputs

    def open_inputs(self, text: str, images: Images) -> ToPredict:
        """Return what predict.input names. `images` are those that the run was trained on."""
        if images.vocabulary:
            texts, data = open_texts(text, self.config.data, images, self._most_masks(images))
            return ToPredict(texts, self._with_input(data, images))
        if images.plain:
            names, inputs = self.read_inputs(text)
            return ToPredict(list(names), self.open_plain(inputs, images))
        files, ignored = list_named_images(text)
        return ToPredict(list(map(str, files)), open_files(files, self.config.data, images), list(map(str, ignored)))

    def open_plain(self, inputs: np.ndarray, images: Images) -> PlainData:
        """Return inputs [N, ...], or tokens [N, T], as the test split of a data set. Their targets are their places.

        Raises:
            ConfigError: the model takes no single array.
            DataError: they have not the shape that the model was trained on, or there are none.
        """
        check_one_input(images)
        if images.vocabulary:
            return self._with_input(open_token_rows(inputs, images, self._most_masks(images)), images)
        if inputs.shape[1:] != images.shape or not len(inputs):
            raise DataError(
                f"the inputs have the shape {list(inputs.shape)}: the model was trained on numbers "
                f"[N, {', '.join(map(str, images.shape))}]; give such"
            )
        split = ArraySplit(inputs.astype(np.float32), np.arange(len(inputs)))
        names = images.class_names
        data = PlainData(train=split, test=split, num_classes=len(names), class_names=names, shape=images.shape)
        return self._with_input(data, images)

    def _most_masks(self, images: Images) -> int:
        """Return how many mask tokens, of which it needs one, a text to predict may have; 0 where it needs none."""
        return 0

    def _with_input(self, data: PlainData, images: Images) -> PlainData:
        return replace(data, to_input=partial(self.take, facts=images.task_facts))

    # ---- targets

    def target_spec(self, data: Dataset, examples: int) -> tf.TensorSpec:
        """Return the form of the targets of some examples: int32 [N] of classes, else float32 [N, K]."""
        if TASKS[self.config.task.kind].targets == CLASSES:
            return tf.TensorSpec([examples], tf.int32)
        return tf.TensorSpec([examples, data.num_classes], tf.float32)

    def fit(self, data: Dataset) -> dict[str, Any]:
        """Return facts about the training examples, as JSON values, which are kept with the run."""
        return {}

    def prepare(self, data: Dataset, facts: Facts) -> Dataset:
        """Return the data as the model learns from it. `facts` are what `fit` returned in the training."""
        if isinstance(data, PlainData):
            data = replace(data, to_input=partial(self.take, facts=facts))
        return replace(data, task_facts=facts)

    def count(self, data: Dataset) -> list[Any]:
        """Return how often each class is there in training, for `LossConfig.for_training`."""
        return []

    # ---- measures

    def guess(self, data: Dataset) -> dict[str, float]:
        """Return the losses by split of a model with the same answer for all examples; empty if they are not known.

        The weights of a loss, which evaluations leave out, count in that of training.
        """
        return {}

    def training_loss(self, data: Dataset) -> LossConfig:
        """Return the loss with the weights for `data`. Raise ConfigError if they do not fit."""
        return self.config.loss.for_training(data.class_names, partial(self.count, data))

    def losses_of(self, outputs: np.ndarray, data: Dataset) -> dict[str, float]:
        """Return the losses by split of a model with the same outputs, [K], for all examples.

        They are not known of a loss of the whole batch.
        """
        if LOSSES[self.config.loss.kind].whole_batch:
            return {}
        losses = {}
        for name, split in data.splits.items():
            config = self.training_loss(data) if name == "train" else self.config.loss.for_evaluation
            stored = tf.constant(read_labels(split))
            targets = stored if data.to_target is None else data.to_target(stored)
            same = tf.broadcast_to(tf.constant(outputs, tf.float32), [split.size, *outputs.shape])
            losses[name] = float(tf.reduce_mean(LOSSES.build(config)(targets, same)))
        return losses

    def metrics(self) -> dict[str, PerExample]:
        """Return what is measured beside the loss in updates and evaluations, by name: means over examples."""
        chosen = (metric for metric in self._chosen if not metric.whole_split and metric.of_mean is None)
        return {metric.name: load(metric.function) for metric in chosen}

    def metrics_of_means(self) -> dict[str, tuple[PerExample, Callable[[float], float]]]:
        """Return what evaluations measure by a mean, by name: its function, and that from the mean to the metric."""
        chosen = ((metric, metric.of_mean) for metric in self._chosen if metric.of_mean is not None)
        return {metric.name: (load(metric.function), load(of_mean)) for metric, of_mean in chosen}

    def further_metrics(self, data: Dataset) -> dict[str, PerExample]:
        """Return what job=evaluate measures in addition, where eval.metrics is null."""
        return {}

    def collectors(self, data: Dataset, split: str, batch: int, replicas: int, *, finding: bool) -> list[Collector]:
        """Return what else evaluations measure. Call it inside the strategy's scope.

        Args:
            batch: examples per batch over all replicas.
            finding: `find` is called afterwards.
        """
        return [self._collect(data, split, batch, replicas)] if self._whole_metrics else []

    def _collect(
        self, data: Dataset, split: str, batch: int, replicas: int, kind: Callable[..., Collected] = Collected
    ) -> Collected:
        shape = self.target_spec(data, 1).shape[1:]
        size, outputs = data.splits[split].size, data.num_classes
        return kind(self._whole_metrics, size, batch, replicas, targets=shape, outputs=outputs)

    @property
    def _whole_metrics(self) -> dict[str, Callable[[np.ndarray, np.ndarray], float]]:
        """The metrics that are no means over examples, by name."""
        return {metric.name: load(metric.function) for metric in self._chosen if metric.whole_split}

    @property
    def _chosen(self) -> list[MetricEntry]:
        return chosen_metrics(self.config)

    # ---- answers

    def answer(self, outputs: tf.Tensor, facts: Facts) -> tf.Tensor:
        """Return the answers, float32 [N, K], to the outputs of a model [N, outputs]. Called in graphs.

        If K is another number than that of the outputs, `answer_names` gives the names.
        """
        return tf.cast(outputs, tf.float32)

    def answer_inputs(self, inputs: Any, outputs: tf.Tensor, facts: Facts) -> tf.Tensor:
        """Return the answers to the outputs of a model, of which `take` has prepared the inputs. Called in graphs."""
        return self.answer(outputs, facts)

    def measure_unit(self, facts: Facts) -> np.ndarray | float:
        """Return the unit of each answer, in which differences are measured."""
        return 1.0

    def answer_names(self, names: Sequence[str]) -> list[str]:
        """Return the names of the answers, one for each of their columns. `names` are those of the outputs."""
        return list(names)

    def answer_shape(self, names: Sequence[str], facts: Facts) -> tuple[int, ...]:
        """Return the shape of the answers to an example. `names` are from `answer_names`."""
        return (len(names),)

    def answer_facts(self, facts: Facts) -> dict[str, Any]:
        """Return the facts that a user of the answers needs, as JSON values by name."""
        return {}

    def keras_layer(self, facts: Facts) -> Any:
        """Return the layer of Keras, named `output`, that does what `answer` does."""
        import keras  # it takes a second, and no other job needs it

        return keras.layers.Identity(name=self.output)

    def tell(self, answers: np.ndarray, names: Sequence[str], facts: Facts) -> Answers:
        """Return in words the answers, float32 [N, K], for examples: each by its name.

        Args:
            names: of the K classes, labels or numbers, from `answer_names`.
        """
        values = [[round_float32(value) for value in row] for row in answers.tolist()]
        return Answers(
            columns=list(names),
            rows=values,
            records=[{self.output: dict(zip(names, row, strict=True))} for row in values],
            titles=list(names),
            shown=[[f"{value:.6g}" for value in row] for row in values],
            summary={},
        )

    def find(self, collectors: Sequence[Collector], data: Dataset, split: str, facts: Facts) -> Findings | None:
        """Return what job=evaluate has found, of all replicas, so all workers must call it; None if nothing.

        Args:
            collectors: what `collectors` has returned for this evaluation.
        """
        return None


def round_float32(value: float) -> float:
    """Return it with the digits that a float32 has."""
    return float(f"{value:.9g}")


def check_one_input(images: Images) -> None:
    """Raise ConfigError if a model takes several arrays, or an array without a known shape."""
    if not images.shape:
        raise ConfigError(
            "predictions and exports take a model of one array [N, ...], and this one takes several, or numbers [N]; "
            "let the data give one array, whose split has its shape"
        )


def build_task(config: Config) -> Task:
    """Return the task of a run. Raise ConfigError if it was registered with something else than a class of tasks."""
    built: Any = load(TASKS[config.task.kind].build)
    if not (isinstance(built, type) and issubclass(built, Task)):
        raise ConfigError(
            f"task={config.task.kind}: {built!r} is no subclass of accumtrain.Task; give register_task such a class"
        )
    return built(config)


def open_stored(config: Config) -> Dataset:
    """Return the data of a run with the targets as they are stored. Raise what `open_data` raises."""
    return open_data(config.data, config.run.seed, TASKS[config.task.kind].targets)


def open_examples(config: Config) -> Dataset:
    """Return the data of a run, with the targets that its model learns. Raise what `open_data` raises."""
    task, data = build_task(config), open_stored(config)
    return task.prepare(data, task.fit(data))
