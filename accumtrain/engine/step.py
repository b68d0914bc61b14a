"""The compiled side of training: the window's replica functions, run by the strategy inside tf.functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from accumtrain.engine.window import Window


class Step:
    """Runs micro-steps and commits on all replicas. Create it inside the strategy's scope."""

    def __init__(self, window: Window, strategy: tf.distribute.Strategy):
        self._window, self._strategy = window, strategy

    @tf.function(autograph=False)
    def accumulate(self, batches: Any, count: tf.Tensor) -> None:
        """Takes `count` (int32 scalar) global micro-batches from an iterator into the buffers."""
        for_each(self._strategy, batches, count, self._window.accumulate)

    @tf.function(autograph=False)
    def commit(self) -> dict[str, tf.Tensor]:
        """The update; scalars as Window.commit returns them, the same on all replicas."""
        results = self._strategy.run(self._window.commit)
        return {name: self._strategy.experimental_local_results(value)[0] for name, value in results.items()}


def for_each(strategy: tf.distribute.Strategy, batches: Any, count: tf.Tensor, function: Callable[[Any], None]) -> None:
    """Runs a replica function on each of the next `count` batches of an iterator, one after the other."""

    def body(done: tf.Tensor) -> tuple[tf.Tensor]:
        strategy.run(function, args=(batches.get_next(),))
        return (done + 1,)

    # a second micro-batch in flight would need its activations too
    tf.while_loop(lambda done: done < count, body, [tf.constant(0)], parallel_iterations=1)
