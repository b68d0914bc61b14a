"""Evaluation of a model on a whole split: the means of loss and metrics, each example counted once.

`ClassAnswers` collects, in the same pass, the confusion matrix and the worst mistakes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from accumtrain.backprop.mode import EVALUATION
from accumtrain.backprop.model import Model
from accumtrain.data.pipeline import distribute_batches, make_eval_batches
from accumtrain.data.source import Dataset, Stream
from accumtrain.engine.ema import MovingAverage
from accumtrain.engine.losses import (
    Batch,
    PerExample,
    SplitMetrics,
    WholeBatch,
    cross_entropy,
    example_weights,
    weighted_sums,
)
from accumtrain.engine.replica import current_replica
from accumtrain.engine.runtime import Runtime
from accumtrain.engine.step import CallLength
from accumtrain.engine.sums import sum_buffer
from accumtrain.errors import DataError
from accumtrain.report.confusion import Mistake

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

    @property
    def variables(self) -> list[tf.Variable]:
        return [self._confusion, self._batches, self._worst]

    def update(self, batch: Batch, logits: tf.Tensor) -> None:
        """Add the part of a batch that a replica has: labels [N], logits [N, classes]; examples of weight 0 are not.

        A mistake's loss is the cross-entropy, and at least log 2, as the wrong class has the higher probability.
        """
        labels, used = tf.cast(batch["label"], tf.int64), example_weights(batch) > 0
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
        """Return the places in the split, int64 [size], of this replica's part of a batch: replicas take turns."""
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

    def read(self) -> tuple[list[list[int]], list[Mistake]]:
        """Return how often class i is taken for class j, and the mistakes with the highest losses, highest first.

        Of all replicas, so all workers must call it.
        """
        confusion, worst = self._read()
        found = [Mistake(*map(int, row[:3]), *row[3:]) for row in tf.reshape(worst, [-1, COLUMNS]).numpy().tolist()]
        mistakes = sorted((row for row in found if row.loss), key=lambda row: (-row.loss, row.position))
        return confusion.numpy().tolist(), mistakes[:WORST]

    @tf.function(autograph=False)
    def _read(self) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.convert_to_tensor(self._confusion), tf.convert_to_tensor(self._worst)


class Evaluator:
    """The evaluation of a model on a split of its data. Create it inside the strategy's scope.

    Args:
        ema: averages to evaluate in place of the weights, or None.
        means: functions (labels [N], logits [N, classes]) -> values [N], by name; `loss` is one of them, or one of the
            whole batch.
        split: name of the split.
        batch: examples per batch over all replicas.
        runtime: what computes, on the replicas of its strategy.
        split_metrics: what else is measured, on one replica; None is nothing.
        answers: collects the answers of the first evaluation, made in the same scope; None if nothing does.
        together: number of batches that a loss of the whole batch sees at once; the last may be fewer.
    """

    def __init__(
        self,
        model: Model,
        ema: MovingAverage | None,
        means: Mapping[str, PerExample | WholeBatch],
        data: Dataset,
        split: str,
        batch: int,
        runtime: Runtime,
        split_metrics: SplitMetrics | None = None,
        answers: ClassAnswers | None = None,
        *,
        together: int = 1,
    ):
        self._model, self._ema, self._runtime = model, ema, runtime
        self._means, self._split_metrics, self._answers = dict(means), split_metrics, answers
        self._whole_loss, self._together = means.get("loss"), together
        self._held: list[tuple[Any, Any]] = []  # batches and outputs, whose loss is to come
        self.split, self._examples = split, data.splits[split]
        self._batches = -(-self._examples.size // batch)
        self._dataset = distribute_batches(
            runtime.strategy, lambda shard: make_eval_batches(data, batch=batch, split=split, shard=shard)
        )
        self._dtype = model.trainable_variables[0].dtype
        self._sums = [sum_buffer([], self._dtype) for _ in [*self._means, "examples"]]
        self._own_variables = [*self._sums, *(answers.variables if answers else ())]
        whole = isinstance(self._whole_loss, WholeBatch)
        self._add = self._add_and_hold if whole else runtime.on_batches(self._add_batch)

    @property
    def names(self) -> list[str]:
        """The names of loss and metrics."""
        return [*self._means, *(self._split_metrics.names if self._split_metrics else ())]

    def __call__(self, stop: Callable[[], bool], report: Callable[[int, int], None]) -> dict[str, float] | None:
        """Evaluate the current state.

        Args:
            stop: called between compiled calls; the evaluation is abandoned if it returns True.
            report: called with the number of batches done and the number of all batches.

        Returns:
            loss and metrics by name, examples, seconds; None if the evaluation was abandoned.

        Raises:
            DataError: all examples are left out (data.on_error=skip), or a stream has other examples than at first.
        """
        started, pace, done = time.perf_counter(), CallLength(), 0
        batches = iter(self._dataset)
        self._held.clear()  # and the sums, which an abandoned evaluation leaves
        self._take()
        with self._averages():
            while done < self._batches:
                if stop():
                    return None
                count = pace.next(self._batches - done)
                with pace.timed(count):
                    try:
                        self._add(batches, count)
                    except (tf.errors.OutOfRangeError, StopIteration) as error:
                        raise self._changed() from error
                done += count
                report(done, self._batches)
        self._add_loss_of_held()
        *sums, examples, others = self._take()
        if isinstance(self._examples, Stream) and next(batches, None) is not None:
            raise self._changed()
        if not examples:
            raise DataError(f"none of the {self.split} examples can be used: see job=check, which names them")
        return {
            **{name: total / examples for name, total in zip(self._means, sums, strict=True)},
            **others,
            "examples": int(examples),
            "seconds": time.perf_counter() - started,
        }

    def _changed(self) -> DataError:
        return DataError(
            f"the {self.split} examples are no longer the {self._examples.size:,} that were counted at the beginning: "
            "let each reading of them give the same ones"
        )

    @contextmanager
    def _averages(self) -> Iterator[None]:
        """Let the model compute with the averages of its weights, if there are any."""
        if self._ema is None:
            yield
            return
        swapped = [*self._ema.weights, *self._ema.averages]
        self._runtime.publish(swapped)
        try:
            with self._ema.in_place():
                self._runtime.reload(swapped)
                yield
        finally:
            self._runtime.reload(swapped)

    def _add_batch(self, batch: Batch) -> Any:
        """Add a batch to the sums. Return the outputs, of which a loss of the whole batch is still to be added."""
        logits = self._model(batch["image"], EVALUATION)
        sums = weighted_sums(self._means.values(), logits, batch)
        if self._split_metrics is not None:
            self._split_metrics.update(batch["label"], logits)
        if self._answers is not None:
            self._answers.update(batch, logits)
        examples = tf.reduce_sum(tf.cast(example_weights(batch), self._dtype))
        for total, value in zip(self._sums, (*sums, examples), strict=True):
            total.assign_add(tf.cast(value, total.dtype))
        return logits

    # ---- a loss of the whole batch: of the outputs of several batches ----

    def _add_and_hold(self, batches: Any, count: int) -> None:
        for _ in range(count):
            batch = next(batches)
            self._held.append((batch, self._add_one(batch)))
            if len(self._held) == self._together:
                self._add_loss_of_held()

    def _add_loss_of_held(self) -> None:
        if self._held:
            batches, outputs = ([*each] for each in zip(*self._held, strict=True))
            self._held.clear()
            self._add_loss(batches, outputs)

    @tf.function(autograph=False)
    def _add_one(self, batch: Any) -> Any:
        return self._runtime.strategy.run(self._add_batch, args=(batch,))

    @tf.function(autograph=False)
    def _add_loss(self, batches: list[Any], outputs: list[Any]) -> None:
        self._runtime.strategy.run(self._add_whole_loss, args=(batches, outputs))

    def _add_whole_loss(self, batches: list[Batch], outputs: list[Any]) -> None:
        assert isinstance(self._whole_loss, WholeBatch)
        examples, _, loss = self._whole_loss.of_batches(batches, outputs)
        total = self._sums[[*self._means].index("loss")]
        total.assign_add(tf.cast(examples, total.dtype) * tf.cast(loss, total.dtype))

    def _take(self) -> list[Any]:
        """Return the sums of all batches since the last call, the number of examples, and other metrics by name."""
        self._runtime.publish(self._own_variables)
        others = self._split_metrics.take() if self._split_metrics else {}
        taken = [*self._read().numpy().tolist(), others]
        self._runtime.reload(self._own_variables)
        return taken

    @tf.function(autograph=False)
    def _read(self) -> tf.Tensor:
        """Return the sums over all replicas, and clear them."""
        sums = tf.stack([tf.convert_to_tensor(total) for total in self._sums])
        for total in self._sums:
            total.assign(tf.zeros_like(total))
        return sums
