"""Losses and metrics: functions of labels [N] and logits [N, classes] to one value per example, [N]."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf

from accumtrain.kinds.losses import LOSSES, CrossEntropyConfig, LossConfig
from accumtrain.kinds.table import load

PerExample = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
Batch = Mapping[str, tf.Tensor]  # image [N, H, W, C], label [N]; optional weight float32 [N], 1 for all if absent


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


def build_loss(config: LossConfig) -> PerExample:
    """The loss that `config` names."""
    loss: PerExample = load(LOSSES[config.kind].build)(config)
    return loss


def build_metrics(config: LossConfig) -> dict[str, PerExample]:
    """What is measured beside the loss that `config` names, by name."""
    return {name: load(metric) for name, metric in LOSSES[config.kind].metrics.items()}


def build_means(config: LossConfig) -> dict[str, PerExample]:
    """The loss, by the name `loss`, and the metrics."""
    return {"loss": build_loss(config), **build_metrics(config)}


def build_split_metrics(config: LossConfig) -> SplitMetrics | None:
    """What is measured on a whole split only; None if there is nothing."""
    build = LOSSES[config.kind].split_metrics
    metrics: SplitMetrics | None = None if build is None else load(build)(config)
    return metrics


def build_cross_entropy(config: CrossEntropyConfig) -> PerExample:
    return cross_entropy


def weighted_sums(functions: Iterable[PerExample], logits: tf.Tensor, batch: Batch) -> list[tf.Tensor]:
    """The sum of each function over the examples of a batch, weighted by example: scalars in its own dtype."""
    values = [function(batch["label"], logits) for function in functions]
    return [tf.reduce_sum(tf.cast(weights(batch), value.dtype) * value) for value in values]


def weights(batch: Batch) -> tf.Tensor:
    """The weight of each example, float32 [N]; 1 if the batch has no weights."""
    return batch["weight"] if "weight" in batch else tf.ones(tf.shape(batch["label"])[:1], tf.float32)


def _class_index(labels: tf.Tensor) -> tf.Tensor:
    if not labels.dtype.is_integer:
        raise TypeError(f"labels are {labels.dtype.name}; a loss of classes takes integers 0..classes-1")
    return tf.cast(labels, tf.int32)
