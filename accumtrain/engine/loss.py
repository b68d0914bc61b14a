"""Losses and metrics: functions of labels [N] and logits [N, classes] to one value per example, [N]."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf

from accumtrain.kinds.losses import LOSSES, CrossEntropyConfig, LossConfig
from accumtrain.kinds.table import load

PerExample = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
# image [N, H, W, C], label [N]; optional weight float32 [N], 1 for all if absent; optional other_label [N] and share
# float32 [N], the part of `label` in a target of both
Batch = Mapping[str, tf.Tensor]


class SplitMetrics(Protocol):
    """What is measured on a whole split, as it is no mean over examples."""

    @property
    def names(self) -> Sequence[str]:
        """The names of what is measured."""

    def update(self, labels: Any, logits: Any) -> None:
        """Adds a batch; called in graphs."""

    def take(self) -> dict[str, float]:
        """The values by name, of all batches since the last call."""


def cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """-log softmax(logits)[label], for labels of any integer dtype."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(_class_index(labels), logits)


def accuracy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """1 where the largest logit is that of the label, else 0; in the dtype of the logits."""
    right = tf.equal(tf.argmax(logits, axis=-1, output_type=tf.int32), _class_index(labels))
    return tf.cast(right, logits.dtype)


def top5(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """1 where the logit of the label is among the five largest, else 0; in the dtype of the logits."""
    _, largest = tf.math.top_k(logits, 5)
    right = tf.reduce_any(tf.equal(largest, _class_index(labels)[:, tf.newaxis]), axis=-1)
    return tf.cast(right, logits.dtype)


def build_loss(config: LossConfig) -> PerExample:
    """The loss that `config` names."""
    loss: PerExample = LOSSES.build(config)
    return loss


def build_metrics(config: LossConfig) -> dict[str, PerExample]:
    """What is measured beside the loss that `config` names, by name."""
    row = LOSSES[config.kind]
    metrics = {name: load(metric) for name, metric in row.metrics.items()}
    return metrics if row.further_metrics is None else metrics | load(row.further_metrics)(config)


def build_means(config: LossConfig) -> dict[str, PerExample]:
    """What evaluations measure: the loss, by the name `loss`, and the metrics."""
    return {"loss": build_loss(config.for_evaluation), **build_metrics(config)}


def build_split_metrics(config: LossConfig) -> SplitMetrics | None:
    """What is measured on a whole split only; None if there is nothing."""
    build = LOSSES[config.kind].split_metrics
    metrics: SplitMetrics | None = None if build is None else load(build)(config)
    return metrics


def build_cross_entropy(config: CrossEntropyConfig) -> PerExample:
    """Class weights, if there are any, must be a list."""
    smoothing, class_weights = config.label_smoothing, config.class_weights

    def loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        values = cross_entropy(labels, logits)
        if smoothing:
            of_all_classes = tf.reduce_logsumexp(logits, axis=-1) - tf.reduce_mean(logits, axis=-1)
            values = (1.0 - smoothing) * values + smoothing * of_all_classes
        if class_weights is not None:
            values *= tf.gather(tf.constant(class_weights, logits.dtype), _class_index(labels))
        return values

    return loss


def weighted_sums(functions: Iterable[PerExample], logits: tf.Tensor, batch: Batch) -> list[tf.Tensor]:
    """The sum of each function over the examples of a batch, weighted by example: scalars in its own dtype.

    An example with two labels has the mean of the values for each, weighted by its share. Cross-entropy is linear in
    the target, so this is its value for the mixed target; accuracy counts a label for as much as the image shows of it.
    """
    values = [_value(function, logits, batch) for function in functions]
    return [tf.reduce_sum(tf.cast(weights(batch), value.dtype) * value) for value in values]


def _value(function: PerExample, logits: tf.Tensor, batch: Batch) -> tf.Tensor:
    value = function(batch["label"], logits)
    if "share" not in batch:
        return value
    share = tf.cast(batch["share"], value.dtype)
    return share * value + (1.0 - share) * function(batch["other_label"], logits)


def weights(batch: Batch) -> tf.Tensor:
    """The weight of each example, float32 [N]; 1 if the batch has no weights."""
    return batch["weight"] if "weight" in batch else tf.ones(tf.shape(batch["label"])[:1], tf.float32)


def _class_index(labels: tf.Tensor) -> tf.Tensor:
    if not labels.dtype.is_integer:
        raise TypeError(f"labels are {labels.dtype.name}; a loss of classes takes integers 0..classes-1")
    return tf.cast(labels, tf.int32)
