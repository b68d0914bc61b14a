"""The means of loss and metrics over a whole split, every example counted once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import tensorflow as tf

from accumtrain.backprop.mode import EVALUATION
from accumtrain.backprop.model import Model
from accumtrain.data.pipeline import distributed, eval_batches
from accumtrain.data.source import Data
from accumtrain.engine.class_answers import ClassAnswers
from accumtrain.engine.ema import MovingAverage
from accumtrain.engine.loss import Batch, PerExample, SplitMetrics, weighted_sums, weights
from accumtrain.engine.pace import Pace
from accumtrain.engine.step import for_each
from accumtrain.engine.window import sum_buffer
from accumtrain.errors import DataError


class Evaluator:
    """Evaluates a model on a split of its data. Create it inside the strategy's scope.

    Args:
        ema: averages to evaluate in place of the weights, or None.
        means: functions (labels [N], logits [N, classes]) -> values [N], by name; `loss` is one of them.
        split: name of the split.
        batch: examples per batch over all replicas.
        split_metrics: what else is measured, on one replica; None is nothing.
        answers: collects the answers of the first evaluation, made in the same scope; None if nothing does.
    """

    def __init__(
        self,
        model: Model,
        ema: MovingAverage | None,
        means: Mapping[str, PerExample],
        data: Data,
        split: str,
        batch: int,
        strategy: tf.distribute.Strategy,
        split_metrics: SplitMetrics | None = None,
        answers: ClassAnswers | None = None,
    ):
        self._model, self._ema, self._strategy = model, ema, strategy
        self._means, self._split_metrics, self._answers = dict(means), split_metrics, answers
        self.split, self._batches = split, -(-data.splits[split].size // batch)
        self._dataset = distributed(strategy, lambda share: eval_batches(data, batch=batch, split=split, share=share))
        self._dtype = model.trainable_variables[0].dtype
        self._sums = [sum_buffer([], self._dtype) for _ in [*self._means, "examples"]]

    @property
    def names(self) -> list[str]:
        """The names of loss and metrics."""
        return [*self._means, *(self._split_metrics.names if self._split_metrics else ())]

    def __call__(self, stop: Callable[[], bool], report: Callable[[int, int], None]) -> dict[str, float] | None:
        """Evaluates the current state.

        Args:
            stop: called between compiled calls; the evaluation is abandoned if it returns True.
            report: called with the number of batches done and the number of all batches.

        Returns:
            loss and metrics by name, examples, seconds; None if the evaluation was abandoned.

        Raises:
            DataError: all examples are left out (data.on_error=skip).
        """
        started, pace, done = time.perf_counter(), Pace(), 0
        batches = iter(self._dataset)
        self._take()  # clears the sums of an abandoned evaluation
        with self._ema.in_place() if self._ema is not None else nullcontext():
            while done < self._batches:
                if stop():
                    return None
                count = pace.next(self._batches - done)
                with pace.timed(count):
                    self._add(batches, tf.constant(count))
                done += count
                report(done, self._batches)
        *sums, examples, others = self._take()
        if not examples:
            raise DataError(f"none of the {self.split} examples can be used: see job=check, which names them")
        return {
            **{name: total / examples for name, total in zip(self._means, sums, strict=True)},
            **others,
            "examples": int(examples),
            "seconds": time.perf_counter() - started,
        }

    @tf.function(autograph=False)
    def _add(self, batches: Any, count: tf.Tensor) -> None:
        for_each(self._strategy, batches, count, self._add_batch)

    def _add_batch(self, batch: Batch) -> None:
        logits = self._model(batch["image"], EVALUATION)
        sums = weighted_sums(self._means.values(), logits, batch)
        if self._split_metrics is not None:
            self._split_metrics.update(batch["label"], logits)
        if self._answers is not None:
            self._answers.update(batch, logits)
        examples = tf.reduce_sum(tf.cast(weights(batch), self._dtype))
        for total, value in zip(self._sums, (*sums, examples), strict=True):
            total.assign_add(tf.cast(value, total.dtype))

    def _take(self) -> list[Any]:
        """The sums of all batches since the last call, the number of examples, and the other metrics by name."""
        others = self._split_metrics.take() if self._split_metrics else {}
        return [*self._read().numpy().tolist(), others]

    @tf.function(autograph=False)
    def _read(self) -> tf.Tensor:
        """Returns the sums over all replicas, and clears them."""
        sums = tf.stack([tf.convert_to_tensor(total) for total in self._sums])
        for total in self._sums:
            total.assign(tf.zeros_like(total))
        return sums
