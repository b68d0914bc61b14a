"""The runtime that computes what TensorFlow has traced: TensorFlow's own, and the interface of any other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from accumtrain.backprop.tracing import on_gpu
from accumtrain.engine.step import Step, run_on_batches
from accumtrain.engine.whole_batch import WholeBatchStep
from accumtrain.engine.window import Window


class Runtime:
    """TensorFlow's runtime, whose state is in the variables.

    That of JAX (pjrt/runtime.py) keeps the state on its device. So everybody who reads variables calls `publish`
    before, and everybody who assigns to them calls `reload` after it.

    Args:
        strategy: whose replicas compute.
        xla: compile micro-steps with XLA.
    """

    plans_bytes = False  # the count is what a compiler has planned, not what was measured

    def __init__(self, strategy: tf.distribute.Strategy, *, xla: bool = False):
        self.strategy, self.xla = strategy, xla

    @property
    def replicas(self) -> int:
        replicas: int = self.strategy.num_replicas_in_sync
        return replicas

    def build_step(self, window: Window, *, eager: bool = False) -> Step:
        """Return the step of a window. Call it inside the strategy's scope."""
        if window.whole_batch:
            return WholeBatchStep(window, self.strategy)
        return Step(window, self.strategy, xla=self.xla, eager=eager)

    @property
    def on_cpu(self) -> bool:
        """Return whether the CPU computes."""
        return not on_gpu()

    def prepare_call(self, function: Callable[[], Any]) -> Callable[[], None]:
        """Return a function that computes `function` once and waits for its end."""

        def call() -> None:
            function()
            self.wait()

        return call

    def wait(self) -> None:
        """Wait for all that is being computed."""
        tf.test.experimental.sync_devices()

    def on_batches(
        self, function: Callable[[Any], None], variables: Iterable[tf.Variable] = ()
    ) -> Callable[[Any, int], None]:
        """Return a compiled function (batches, count) that runs `function` on the next `count` of an iterator.

        Args:
            variables: those that `function` may use through their handles alone.
        """

        @tf.function(autograph=False)
        def run(batches: Any, count: tf.Tensor) -> None:
            run_on_batches(self.strategy, batches, count, function)

        return lambda batches, count: run(batches, tf.constant(count))

    def publish(self, variables: Iterable[tf.Variable] | None = None) -> None:
        """Give `variables` their newest values; None is the whole state, without the sums of a window."""

    def reload(self, variables: Iterable[tf.Variable] | None = None) -> None:
        """Take the values that were assigned to `variables`; None is the whole state, without the sums of a window."""

    def count_bytes(self) -> tuple[int, int] | tuple[None, None] | None:
        """Return the bytes of the state, and of all tensors at the peak; None if the allocators of TensorFlow count.

        Both are None while nothing has been compiled.
        """
        return None
