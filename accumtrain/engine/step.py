"""The compiled side of training: the window's replica functions, run by the strategy inside tf.functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from accumtrain.engine.graph_optimizer import FUSION_ONLY, NOTHING, Compiled
from accumtrain.engine.window import Window
from accumtrain.models.target import for_xla


class Step:
    """Runs micro-steps and commits on all replicas. Create it inside the strategy's scope.

    Args:
        xla: compile micro-steps with XLA; the commit gains nothing from it.

    Attributes:
        accumulate: (batches, count) takes `count` (int32 scalar) global micro-batches of an iterator into the buffers.
        commit: makes the update; returns scalars as Window.commit does, the same on all replicas.
        updates: (batches, count) makes `count` (int32 scalar, at least 1) whole updates, the same bits as from as many
            calls of the other two; returns the scalars of the last. It stops after one that is not finite.
    """

    def __init__(self, window: Window, strategy: tf.distribute.Strategy, xla: bool = False):
        self._window, self._strategy = window, strategy
        self._micro_step = by_xla(window.accumulate, strategy) if xla else window.accumulate
        self._update = traced_for_xla(window.commit) if on_tpu(strategy) else window.commit
        self.accumulate = Compiled(self._accumulate, FUSION_ONLY)
        self.commit = Compiled(self._commit, NOTHING)
        self.updates = Compiled(self._updates, NOTHING)  # the two that it calls keep their own settings

    def trace(self, batches: Any) -> Any:
        """Traces the micro-step and returns it; the commit is traced while the first micro-steps run."""
        micro_step = self.accumulate.get_concrete_function(batches, tf.constant(1))
        self.commit.trace_ahead()
        return micro_step

    def _accumulate(self, batches: Any, count: tf.Tensor) -> None:
        for_each(self._strategy, batches, count, self._micro_step)

    def _commit(self) -> dict[str, tf.Tensor]:
        results = self._strategy.run(self._update)
        return {name: self._strategy.experimental_local_results(value)[0] for name, value in results.items()}

    def _updates(self, batches: Any, count: tf.Tensor) -> dict[str, tf.Tensor]:
        def body(done: tf.Tensor, update: dict[str, tf.Tensor]) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            self.accumulate(batches, tf.constant(self._window.micro_steps))
            return done + 1, self.commit()

        scalars = self.commit.get_concrete_function().structured_outputs
        none = {name: tf.ones(scalar.shape, scalar.dtype) for name, scalar in scalars.items()}  # none is "finite", too
        _, last = tf.while_loop(
            lambda done, update: (done < count) & update["finite"],
            body,
            (tf.constant(0), none),
            parallel_iterations=1,
        )
        return last


def by_xla(function: Callable[[Any], None], strategy: tf.distribute.Strategy) -> Callable[[Any], None]:
    """The replica function, traced for XLA and compiled by it."""
    traced = traced_for_xla(function)
    # a TPU compiles whatever it runs
    return traced if on_tpu(strategy) else tf.function(traced, autograph=False, jit_compile=True)


def on_tpu(strategy: tf.distribute.Strategy) -> bool:
    return isinstance(strategy, tf.distribute.TPUStrategy)


def traced_for_xla(function: Callable[..., Any]) -> Callable[..., Any]:
    def traced(*arguments: Any) -> Any:
        with for_xla():
            return function(*arguments)

    return traced


def for_each(strategy: tf.distribute.Strategy, batches: Any, count: tf.Tensor, function: Callable[[Any], None]) -> None:
    """Runs a replica function on each of the next `count` batches of an iterator, one after the other."""

    def body(done: tf.Tensor) -> tuple[tf.Tensor]:
        strategy.run(function, args=(batches.get_next(),))
        return (done + 1,)

    # a second micro-batch in flight would need its activations too
    tf.while_loop(lambda done: done < count, body, [tf.constant(0)], parallel_iterations=1)
