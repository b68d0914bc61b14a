"""The compiled side of a run: replica functions of the window, run by the strategy inside tf.functions."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from accumtrain.engine.window import Batch, Window, loss_and_correct, sum_buffer
from accumtrain.models.mode import EVALUATION


class Step:
    """Runs micro-steps, commits and evaluation on all replicas. Create it inside the strategy's scope."""

    def __init__(self, window: Window, strategy: tf.distribute.Strategy):
        self.window, self.strategy = window, strategy
        self._evaluated = [sum_buffer([], window.dtype) for _ in range(3)]  # loss, correct, examples

    @tf.function
    def accumulate(self, batches: Any, count: tf.Tensor) -> None:
        """Takes `count` (int32 scalar) global micro-batches from an iterator into the buffers."""
        self._for_each(batches, count, self.window.accumulate)

    @tf.function
    def commit(self) -> dict[str, tf.Tensor]:
        """The update; scalars as Window.commit returns them, the same on all replicas."""
        results = self.strategy.run(self.window.commit)
        return {name: self.strategy.experimental_local_results(value)[0] for name, value in results.items()}

    @tf.function
    def evaluate(self, batches: Any, count: tf.Tensor) -> None:
        """Adds `count` batches to the sums that `evaluated` reads."""
        self._for_each(batches, count, self._evaluate)

    @tf.function
    def evaluated(self) -> tf.Tensor:
        """Sums since the last call over all replicas: loss, correct answers, examples. Clears them."""
        sums = tf.stack([tf.convert_to_tensor(total) for total in self._evaluated])
        for total in self._evaluated:
            total.assign(tf.zeros_like(total))
        return sums

    def _evaluate(self, batch: Batch) -> None:
        loss, correct = loss_and_correct(self.window.model(batch["image"], EVALUATION), batch)
        examples = tf.reduce_sum(tf.cast(batch["weight"], self.window.dtype))
        for total, value in zip(self._evaluated, (loss, correct, examples), strict=True):
            total.assign_add(value)

    def _for_each(self, batches: Any, count: tf.Tensor, function: Any) -> None:
        def body(done: tf.Tensor) -> tuple[tf.Tensor]:
            self.strategy.run(function, args=(batches.get_next(),))
            return (done + 1,)

        # one at a time: a second micro-batch in flight would need its activations too
        tf.while_loop(lambda done: done < count, body, [tf.constant(0)], parallel_iterations=1)
