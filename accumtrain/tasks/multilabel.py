"""task=multilabel: each image has several labels, one or none. Each has a logit of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.config.jobs import cell
from accumtrain.console import say, table
from accumtrain.data.source import Dataset, read_labels
from accumtrain.engine.losses import Collector, PerExample
from accumtrain.report.answers import LabelCurve, draw_labels
from accumtrain.tasks import scores
from accumtrain.tasks.collected import Collected
from accumtrain.tasks.config import SigmoidCrossEntropyConfig
from accumtrain.tasks.task import Answers, Facts, Task, round_float32

THRESHOLDS = "thresholds"  # a fact: the least probability at which each label is said
PICTURE = "labels"  # without its ending
SMALL = 1e-6  # share of a label that no training example has
SHOWN = 15  # labels that are printed


class Multilabel(Task):
    """Several labels are said, or none. Those are said whose probability reaches a threshold."""

    output = "probabilities"

    def count(self, data: Dataset) -> list[tuple[int, int]]:
        """Return, for each label, the numbers of training examples that have it, and that do not."""
        labels = read_labels(data.train)
        return list(zip((labels == 1).sum(0).tolist(), (labels == 0).sum(0).tolist(), strict=True))

    def guess(self, data: Dataset) -> dict[str, float]:
        """Return the losses by split of a model that gives each label its share of the training examples."""
        have, lack = np.array(self.count(data), np.float64).T
        have *= self.training_loss(data).factors or 1.0
        share = np.clip(have / np.maximum(have + lack, SMALL), SMALL, 1.0 - SMALL)
        return self.losses_of(np.log(share / (1.0 - share)), data)

    def answer(self, outputs: tf.Tensor, facts: Facts) -> tf.Tensor:
        """Return the sigmoid of the logits."""
        return tf.cast(tf.sigmoid(outputs), tf.float32)

    def answer_facts(self, facts: Facts) -> dict[str, Any]:
        """Return the threshold of each label."""
        return {THRESHOLDS: facts[THRESHOLDS]} if THRESHOLDS in facts else {}

    def keras_layer(self, facts: Facts) -> Any:
        import keras

        return keras.layers.Activation("sigmoid", name=self.output)

    def tell(self, answers: np.ndarray, names: Sequence[str], facts: Facts) -> Answers:
        """Tell the labels of each example, and the probability of all."""
        said = answers >= np.asarray(facts.get(THRESHOLDS, [scores.HALF] * len(names)))
        labels = [[name for name, is_said in zip(names, row, strict=True) if is_said] for row in said]
        values = [[round_float32(value) for value in row] for row in answers.tolist()]
        by_name = [dict(zip(names, row, strict=True)) for row in values]
        return Answers(
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

    def collectors(self, data: Dataset, split: str, batch: int, replicas: int, *, finding: bool) -> list[Collector]:
        """Return a collector always: it finds the thresholds."""
        return [self._collect(data, split, batch, replicas, Scores)]

    def find(self, collectors: Sequence[Collector], data: Dataset, split: str, facts: Facts) -> LabelFindings:
        (found,) = (collector for collector in collectors if isinstance(collector, Scores))
        thresholds = facts.get(THRESHOLDS, [scores.HALF] * data.num_classes)
        return LabelFindings(data.classes, found.targets, sigmoid(found.outputs), thresholds)


class Scores(Collected):
    """Collects labels and logits. Its facts are the thresholds that give each label the highest F1."""

    def take(self) -> dict[str, float]:
        metrics = super().take()
        pairs = zip(self.targets.T, sigmoid(self.outputs).T, strict=True)
        self.facts = {THRESHOLDS: [scores.best_threshold(*pair) for pair in pairs]}
        return metrics


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return the probabilities of logits, float32, with the bits that `Multilabel.answer` gives them."""
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


@dataclass(frozen=True)
class LabelResult:
    """The results of a label at its threshold, over the examples of which it is known. None without such examples."""

    name: str
    examples: int
    with_it: int
    average_precision: float | None
    threshold: float
    precision: float | None
    recall: float | None
    f1: float | None


@dataclass(frozen=True)
class LabelFindings:
    """The labels [N, K] of a split, their probabilities [N, K], and the threshold of each label."""

    names: list[str]
    labels: np.ndarray
    probabilities: np.ndarray
    thresholds: Sequence[float]

    @property
    def results(self) -> list[LabelResult]:
        """Those of the labels, lowest average precision first, and those without examples last."""
        columns = zip(self.names, self.labels.T, self.probabilities.T, self.thresholds, strict=True)
        found = [_measure_label(*column) for column in columns]
        return sorted(found, key=lambda it: (it.average_precision is None, it.average_precision or 0.0))

    def describe(self) -> dict[str, Any]:
        results = self.results
        known = [result.f1 for result in results if result.f1 is not None]
        mean = float(np.mean(known)) if known else None
        return {"labels": [asdict(result) for result in results], "f1_at_thresholds": mean}

    def show(self) -> None:
        results = self.results
        rows = [
            (
                result.name,
                f"{result.with_it} of {result.examples}",
                cell(result.average_precision, ".4f"),
                f"{result.threshold:.4f}",
                *(cell(value, ".4f") for value in (result.precision, result.recall, result.f1)),
            )
            for result in results[:SHOWN]
        ]
        titles = ("label", "examples", "average precision", "threshold", "precision", "recall", "F1")
        table("labels, lowest average precision first", titles, rows)
        if len(results) > SHOWN:
            say(f"... and {len(results) - SHOWN:,} more")

    def draw(self, title: str, folder: Path, end: str) -> list[Path]:
        """Draw precision against recall of each label."""
        picture = folder / f"{PICTURE}{end}.png"
        curves = []
        for result in self.results:
            place = self.names.index(result.name)
            labels, probabilities = self.labels[:, place], self.probabilities[:, place]
            if result.average_precision is not None:
                precision, recall, _ = scores.precision_recall(labels, probabilities)
                curves.append(LabelCurve(result.name, precision, recall, result.precision, result.recall))
        draw_labels(curves, title, picture)
        return [picture]


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
