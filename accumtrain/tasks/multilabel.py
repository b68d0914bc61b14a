"""task=multilabel: each example has several labels, one or none. Each has a logit of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

import numpy as np
import tensorflow as tf

from accumtrain.data.source import read_labels
from accumtrain.engine.losses import Collector, PerExample
from accumtrain.fields import SHARE
from accumtrain.report.answers import LabelCurve, LabelReport, LabelResult
from accumtrain.tasks import scores
from accumtrain.tasks.answer import Answer, AnswersInWords, round_float32
from accumtrain.tasks.collected import Collected
from accumtrain.tasks.config import SigmoidCrossEntropyConfig
from accumtrain.tasks.objective import Facts, Objective

THRESHOLDS = "thresholds"  # a fact: the least probability at which each label counts as predicted
SMALL = 1e-6  # share of a label that no training example has


class Multilabel(Objective):
    """Several labels are learned, one or none, by a model with a logit for each."""

    def count(self) -> list[tuple[int, int]]:
        """Return, for each label, the numbers of training examples that have it, and that do not."""
        labels = read_labels(self.stored.train)
        return list(zip((labels == 1).sum(0).tolist(), (labels == 0).sum(0).tolist(), strict=True))

    def guess(self) -> dict[str, float]:
        """Return the losses by split of a model that gives each label its share of the training examples."""
        have, lack = np.array(self.count(), np.float64).T
        have *= self.loss_config.factors or 1.0
        share = np.clip(have / np.maximum(have + lack, SMALL), SMALL, 1.0 - SMALL)
        return self.losses_of(np.log(share / (1.0 - share)))

    def collectors(self, split: str, batch: int, replicas: int, *, reports: bool) -> list[Collector]:
        """Return a collector always: it finds the thresholds."""
        return [self.collect(split, batch, replicas, Scores)]

    def report(self, collectors: Sequence[Collector], split: str, facts: Facts) -> LabelReport:
        (found,) = (collector for collector in collectors if isinstance(collector, Scores))
        thresholds = facts.get(THRESHOLDS, [scores.HALF] * self.stored.num_classes)
        return report_labels(self.stored.classes, found.targets, sigmoid(found.outputs), thresholds)


class LabelFacts(TypedDict, total=False):
    thresholds: list[Annotated[float, SHARE]]


class LabelAnswer(Answer):
    """The probabilities of the labels. A label is predicted if its probability reaches a threshold."""

    name = "probabilities"
    facts_type = LabelFacts

    def __call__(self, inputs: Any, outputs: tf.Tensor) -> tf.Tensor:
        """Return the sigmoid of the logits."""
        return tf.cast(tf.sigmoid(outputs), tf.float32)

    def texts(self) -> dict[str, Any]:
        """Return the threshold of each label."""
        return {THRESHOLDS: self.facts[THRESHOLDS]} if THRESHOLDS in self.facts else {}

    def keras_layer(self) -> Any:
        import keras

        return keras.layers.Activation("sigmoid", name=self.name)

    def tell(self, answers: np.ndarray) -> AnswersInWords:
        """Tell the labels of each example, and the probability of all."""
        names = self.columns
        said = answers >= np.asarray(self.facts.get(THRESHOLDS, [scores.HALF] * len(names)))
        labels = [[name for name, is_said in zip(names, row, strict=True) if is_said] for row in said]
        values = [[round_float32(value) for value in row] for row in answers.tolist()]
        by_name = [dict(zip(names, row, strict=True)) for row in values]
        return AnswersInWords(
            columns=["labels", *names],
            rows=[[";".join(own), *row] for own, row in zip(labels, values, strict=True)],
            records=[{"labels": own, "probabilities": row} for own, row in zip(labels, by_name, strict=True)],
            titles=["labels", "probabilities"],
            shown=[
                [", ".join(own) or "none", ", ".join(f"{name} {row[name]:.4f}" for name in own)]
                for own, row in zip(labels, by_name, strict=True)
            ],
            summary={"labels": dict(Counter(name for own in labels for name in own).most_common())},
        )


class Scores(Collected):
    """Collects labels and logits. Its facts are the thresholds that give each label the highest F1."""

    def take(self) -> dict[str, float]:
        metrics = super().take()
        pairs = zip(self.targets.T, sigmoid(self.outputs).T, strict=True)
        self.facts = {THRESHOLDS: [scores.best_threshold(*pair) for pair in pairs]}
        return metrics


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return the probabilities of logits, float32, with the bits that `LabelAnswer` gives them."""
    return np.asarray(tf.sigmoid(tf.constant(logits, tf.float32)))


def build_loss(config: SigmoidCrossEntropyConfig) -> PerExample:
    """Return the cross-entropy of labels [N, K] and logits [N, K]: the sum over known labels by K, [N]."""
    weights = config.factors or 1.0

    def loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        known = ~tf.math.is_nan(labels)
        target = tf.cast(tf.where(known, labels, tf.zeros_like(labels)), logits.dtype)
        # tf.nn.weighted_cross_entropy_with_logits has no right gradient where a logit is 0
        there = tf.constant(weights, logits.dtype) * target * tf.nn.softplus(-logits)
        values = there + (1.0 - target) * tf.nn.softplus(logits)
        return tf.reduce_mean(tf.where(known, values, tf.zeros_like(values)), axis=-1)

    return loss


# ---- what job=evaluate finds ----


def report_labels(
    names: Sequence[str], labels: np.ndarray, probabilities: np.ndarray, thresholds: Sequence[float]
) -> LabelReport:
    """Return the report of labels [N, K], NaN where unknown, and their probabilities [N, K]."""
    columns = zip(names, labels.T, probabilities.T, thresholds, strict=True)
    found = [(_measure_label(*column), *column[1:3]) for column in columns]
    found.sort(key=lambda it: (it[0].average_precision is None, it[0].average_precision or 0.0))
    curves = [
        LabelCurve(result.name, *scores.precision_recall(own, said)[:2], result.precision, result.recall)
        for result, own, said in found
        if result.average_precision is not None
    ]
    return LabelReport([result for result, *_ in found], curves)


def _measure_label(name: str, labels: np.ndarray, probabilities: np.ndarray, threshold: float) -> LabelResult:
    known = ~np.isnan(labels)
    labels, probabilities = labels[known], probabilities[known]
    have, said = labels == 1, probabilities >= np.float32(threshold)
    right, with_it, told = int((have & said).sum()), int(have.sum()), int(said.sum())
    precision = scores.average_precision(labels, probabilities)
    return LabelResult(
        name,
        examples=int(known.sum()),
        with_it=with_it,
        average_precision=precision if with_it else None,
        threshold=threshold,
        precision=right / told if told else None,
        recall=right / with_it if with_it else None,
        f1=2 * right / (told + with_it) if with_it else None,
    )
