"""What a model answers for the examples of each class, and its worst mistakes: collected in graphs while it runs."""

from __future__ import annotations

import tensorflow as tf

from accumtrain.engine.loss import Batch, cross_entropy, weights
from accumtrain.engine.window import sum_buffer
from accumtrain.runs.mistakes import Mistake

WORST = 24  # mistakes that are kept
COLUMNS = 5  # the fields of a mistake, in their order; float64 holds each of them exactly


class ClassAnswers:
    """The answers of one evaluation. Create it inside the strategy's scope; `update` is called by each replica.

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

    def update(self, batch: Batch, logits: tf.Tensor) -> None:
        """Adds the part of a batch that a replica has: labels [N], logits [N, classes]; examples of weight 0 are not.

        A mistake's loss is the cross-entropy, and at least log 2, as the wrong class has the higher probability.
        """
        labels, used = tf.cast(batch["label"], tf.int64), weights(batch) > 0
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
        """The places in the split, int64 [size], of this replica's part of the next batch: replicas take turns."""
        parts = tf.convert_to_tensor(self._batches) * self._replicas + tf.cast(_replica(), tf.int64)
        self._batches.assign_add(tf.constant(1, tf.int64))
        return parts * size + tf.range(size)

    def _keep_worst(self, mistakes: tf.Tensor) -> None:
        """Keeps the highest losses among those kept and `mistakes`, [N, COLUMNS]; rows of 0 stand for none."""
        candidates = tf.concat([tf.convert_to_tensor(self._worst)[_replica()], mistakes], axis=0)
        _, rows = tf.math.top_k(tf.cast(candidates[:, 3], tf.float32), WORST)
        own = tf.one_hot(_replica(), self._replicas, dtype=tf.float64)[:, tf.newaxis, tf.newaxis]
        self._worst.assign(own * tf.gather(candidates, rows)[tf.newaxis])

    def read(self) -> tuple[list[list[int]], list[Mistake]]:
        """How often class i is taken for class j, and the mistakes with the highest losses, highest first.

        Of all replicas, so all workers must call it.
        """
        confusion, worst = self._read()
        found = [Mistake(*map(int, row[:3]), *row[3:]) for row in tf.reshape(worst, [-1, COLUMNS]).numpy().tolist()]
        mistakes = sorted((each for each in found if each.loss), key=lambda each: (-each.loss, each.position))
        return confusion.numpy().tolist(), mistakes[:WORST]

    @tf.function(autograph=False)
    def _read(self) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.convert_to_tensor(self._confusion), tf.convert_to_tensor(self._worst)


def _replica() -> tf.Tensor:
    return tf.convert_to_tensor(tf.distribute.get_replica_context().replica_id_in_sync_group)
