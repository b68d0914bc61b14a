"""task=classify: each example is of one class, which has the largest logit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.console import say
from accumtrain.data.pipeline import show_inputs
from accumtrain.data.source import SPLIT_WORDS, class_counts
from accumtrain.engine.losses import Batch, Collector, PerExample, class_index, cross_entropy, example_weights, top5
from accumtrain.engine.replica import current_replica
from accumtrain.engine.sums import sum_buffer
from accumtrain.report.classes import ClassReport, Confusion, Mistake
from accumtrain.tasks.answer import Answer, AnswersInWords, round_float32
from accumtrain.tasks.config import CrossEntropyConfig, gives_answers
from accumtrain.tasks.objective import Facts, Objective

WORST = 24  # mistakes that are kept
COLUMNS = 5  # the fields of a mistake, in their order; float64 holds each of them exactly
MOST_CLASSES = 2000  # of a confusion matrix; it takes 32 MB then
TOP = 5  # of more classes, top5 is measured


class Classify(Objective):
    """One of several classes is learned, by a model with a logit for each."""

    def count(self) -> list[int]:
        return class_counts(self.stored.train, self.stored.num_classes)

    @property
    def further_means(self) -> dict[str, PerExample]:
        return {"top5": top5} if self.stored.num_classes > TOP and self._gives_answers else {}

    @property
    def _gives_answers(self) -> bool:
        return gives_answers(self.config.task, self.config.loss)

    def guess(self) -> dict[str, float]:
        """Return the losses by split of a model that gives each class the same probability."""
        if not isinstance(self.config.loss, CrossEntropyConfig) or self.stored.num_classes < 2:
            return {}
        guess, mean_factor = math.log(self.stored.num_classes), 1.0
        if factors := self.loss_config.factors:
            counts = np.array(self.count())  # a class counts as often as it appears
            mean_factor = float(np.average(factors, weights=counts > 0 if self.stored.balanced else counts))
        return {**dict.fromkeys(SPLIT_WORDS, guess), "train": guess * mean_factor}

    def collectors(self, split: str, batch: int, replicas: int, *, reports: bool) -> list[Collector]:
        found = super().collectors(split, batch, replicas, reports=reports)
        if not reports or not self._gives_answers:
            return found
        classes = self.stored.num_classes
        if classes > MOST_CLASSES:
            most = f"{MOST_CLASSES:,}"
            say(f"{classes:,} classes: the table of classes and the pictures are made for up to {most}")
            return found
        return [*found, ClassFinder(classes, replicas)]

    def report(self, collectors: Sequence[Collector], split: str, facts: Facts) -> ClassReport | None:
        finders = [collector for collector in collectors if isinstance(collector, ClassFinder)]
        if not finders:
            return None
        data = self.data
        confusion, mistakes = finders[0].read(data.classes)
        indices = [mistake.index for mistake in mistakes]
        files, images = data.splits[split].files, None
        if data.inputs.is_seen:
            images = list(show_inputs(data, split, indices)) if indices else []
        return ClassReport(confusion, mistakes, [files[index] for index in indices] if files else [], images)


class ClassAnswer(Answer):
    """The probabilities of the classes."""

    name = "probabilities"

    def __call__(self, inputs: Any, outputs: tf.Tensor) -> tf.Tensor:
        """Return the softmax of the logits."""
        return tf.cast(tf.nn.softmax(outputs), tf.float32)

    def keras_layer(self) -> Any:
        import keras

        return keras.layers.Softmax(name=self.name)

    def tell(self, answers: np.ndarray) -> AnswersInWords:
        """Tell the predict.top most probable classes of each example, falling."""
        names = self.columns
        top = min(self.config.predict.top, len(names))
        ranked = np.argsort(-answers, axis=1, kind="stable")[:, :top]
        rows = [
            [(names[number], float(value[number])) for number in numbers]
            for numbers, value in zip(ranked.tolist(), answers, strict=True)
        ]
        ranks = ["", *(f"_{rank}" for rank in range(2, top + 1))]
        tops = [[{"class": name, "probability": round_float32(value)} for name, value in row] for row in rows]
        return AnswersInWords(
            columns=[f"{name}{rank}" for rank in ranks for name in ("class", "probability")],
            rows=[[cell for name, value in row for cell in (name, round_float32(value))] for row in rows],
            records=[{**top[0], "top": top} for top in tops],
            titles=["class", "probability", "or"],
            shown=[
                [row[0][0], f"{row[0][1]:.4f}", ", ".join(f"{name} {value:.4f}" for name, value in row[1:])]
                for row in rows
            ],
            summary={"classes": dict(Counter(row[0][0] for row in rows).most_common())},
        )


def build_cross_entropy(config: CrossEntropyConfig) -> PerExample:
    """Return the cross-entropy. Class weights, if there are any, must be a list."""
    smoothing, class_weights = config.label_smoothing, config.class_weights

    def loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        values = cross_entropy(labels, logits)
        if smoothing:
            of_all_classes = tf.reduce_logsumexp(logits, axis=-1) - tf.reduce_mean(logits, axis=-1)
            values = (1.0 - smoothing) * values + smoothing * of_all_classes
        if class_weights is not None:
            values *= tf.gather(tf.constant(class_weights, logits.dtype), class_index(labels))
        return values

    return loss


# ---- what job=evaluate finds -----------------------------------------------------------------------------------------


class ClassFinder:
    """Counts the confusions of an evaluation, and keeps the worst mistakes. Create it inside the strategy's scope.

    Args:
        classes: their number; the memory taken is 8 bytes * classes^2 on each replica.
        replicas: of all workers.
    """

    def __init__(self, classes: int, replicas: int) -> None:
        self._classes, self._replicas = classes, replicas
        self._confusion = sum_buffer([classes, classes], tf.int64)
        self._batches = sum_buffer([], tf.int64)
        # a replica writes its own part and leaves the others 0, so the sum over replicas has the parts of all
        self._worst = sum_buffer([replicas, WORST, COLUMNS], tf.float64)

    names: Sequence[str] = ()

    @property
    def facts(self) -> Facts:
        return {}

    @property
    def variables(self) -> list[tf.Variable]:
        return [self._confusion, self._batches, self._worst]

    def update(self, batch: Batch, logits: tf.Tensor) -> None:
        """Add the part of a batch that a replica has: labels [N], logits [N, classes]; examples of weight 0 are not.

        A mistake's loss is the cross-entropy, and at least log 2, as the wrong class has the higher probability.
        """
        labels, used = tf.cast(batch["targets"], tf.int64), example_weights(batch) > 0
        predicted = tf.argmax(logits, axis=-1)
        self._confusion.assign_add(
            tf.math.confusion_matrix(labels, predicted, self._classes, tf.cast(used, tf.int64), tf.int64)
        )
        logits = tf.cast(logits, tf.float32)
        losses = cross_entropy(labels, logits)
        losses = tf.where(tf.math.is_finite(losses), losses, losses.dtype.max)
        probability = tf.reduce_max(tf.nn.softmax(logits), axis=-1)
        fields = (self._positions(tf.size(labels, tf.int64)), labels, predicted, losses, probability)
        mistakes = tf.stack([tf.cast(field, tf.float64) for field in fields], axis=-1)
        self._keep_worst(tf.where((used & (predicted != labels))[:, tf.newaxis], mistakes, tf.zeros_like(mistakes)))

    def _positions(self, size: tf.Tensor) -> tf.Tensor:
        """Return the indices in the split, int64 [size], of this replica's part of a batch: replicas take turns."""
        parts = tf.convert_to_tensor(self._batches) * self._replicas + tf.cast(current_replica()[0], tf.int64)
        self._batches.assign_add(tf.constant(1, tf.int64))
        return parts * size + tf.range(size)

    def _keep_worst(self, mistakes: tf.Tensor) -> None:
        """Keep the highest losses among those kept and `mistakes`, [N, COLUMNS]; rows of 0 stand for none."""
        replica, _ = current_replica()
        candidates = tf.concat([tf.convert_to_tensor(self._worst)[replica], mistakes], axis=0)
        _, rows = tf.math.top_k(tf.cast(candidates[:, 3], tf.float32), WORST)
        own = tf.one_hot(replica, self._replicas, dtype=tf.float64)[:, tf.newaxis, tf.newaxis]
        self._worst.assign(own * tf.gather(candidates, rows)[tf.newaxis])

    @tf.function(autograph=False)
    def reset(self) -> None:
        for variable in self.variables:
            variable.assign(tf.zeros_like(variable))

    def take(self) -> dict[str, float]:
        return {}

    def read(self, names: list[str]) -> tuple[Confusion, list[Mistake]]:
        """Return the confusions of classes, and the mistakes with the highest losses, highest first."""
        confusion, worst = self._read()
        found = [Mistake(*map(int, row[:3]), *row[3:]) for row in tf.reshape(worst, [-1, COLUMNS]).numpy().tolist()]
        mistakes = sorted((row for row in found if row.loss), key=lambda row: (-row.loss, row.index))
        return Confusion(names, confusion.numpy().tolist()), mistakes[:WORST]

    @tf.function(autograph=False)
    def _read(self) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.convert_to_tensor(self._confusion), tf.convert_to_tensor(self._worst)
