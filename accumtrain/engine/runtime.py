"""The runtime that computes what TensorFlow has traced: its interface, and TensorFlow's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import tensorflow as tf

from accumtrain.backprop.tracing import on_gpu
from accumtrain.engine.programs import run_on_batches
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window


class Runtime(Protocol):
    """A runtime, which computes on the replicas of a strategy. JAX's is in pjrt/.

    A runtime may keep the state on its devices. So variables are read within `reading`, and assigned within
    `assigning`. Both take some variables, or the whole state without the sums of a window.

    Attributes:
        strategy: in whose scope models and windows are made.
        xla: XLA compiles the micro-steps.
        plans_bytes: the count of bytes is what a compiler has planned, not what was measured.
    """

    strategy: tf.distribute.Strategy
    xla: bool
    plans_bytes: bool

    @property
    def replicas(self) -> int:
        """Return the number of replicas that compute."""

    @property
    def on_cpu(self) -> bool:
        """Return whether the CPU computes."""

    def build_step(self, window: Window, *, eager: bool = False) -> Step:
        """Return the step of a window. Call it inside the strategy's scope."""

    def reading(self, variables: Iterable[tf.Variable] | None = None) -> AbstractContextManager[None]:
        """Return a context within which the variables have their newest values."""

    def assigning(self, variables: Iterable[tf.Variable] | None = None) -> AbstractContextManager[None]:
        """Return a context within which the variables have their newest values, and may be assigned.

        Programs compute with the assigned values from then on, within the context and after it, also after an error.
        """

    def prepare_call(self, function: Callable[[], Any]) -> Callable[[], None]:
        """Return a function that computes `function` once and waits for its end."""

    def wait(self) -> None:
        """Wait for all that is being computed."""

    def on_batches(
        self, function: Callable[[Any], Any], variables: Iterable[tf.Variable] = ()
    ) -> Callable[[Any, int], None]:
        """Return a compiled function (batches, count) that runs `function` on the next `count` of an iterator.

        Args:
            variables: those that `function` may use through their handles alone.
        """

    def on_replicas(self, function: Callable[..., Any], variables: Iterable[tf.Variable] = ()) -> Callable[..., Any]:
        """Return a compiled function that runs `function` on all replicas, each with its part of the arguments.

        It returns tensors of the host, or the values of the strategy's replicas.

        Args:
            variables: those that `function` may use through their handles alone.
        """

    def count_bytes(self) -> tuple[int, int] | tuple[None, None] | None:
        """Return the bytes of the state, and of all tensors at the peak; None if the allocators of TensorFlow count.

        Both are None while nothing has been compiled.
        """


class TensorFlowRuntime:
    """See Runtime. The state is in the variables.

    Args:
        strategy: whose replicas compute; None is the current one.
        xla: compile micro-steps with XLA.
    """

    plans_bytes = False

    def __init__(self, strategy: tf.distribute.Strategy | None = None, *, xla: bool = False):
        self.strategy, self.xla = strategy or tf.distribute.get_strategy(), xla

    @property
    def replicas(self) -> int:
        replicas: int = self.strategy.num_replicas_in_sync
        return replicas

    @property
    def on_cpu(self) -> bool:
        return not on_gpu()

    def build_step(self, window: Window, *, eager: bool = False) -> Step:
        return Step(window, xla=self.xla, eager=eager)

    def reading(self, variables: Iterable[tf.Variable] | None = None) -> AbstractContextManager[None]:
        return nullcontext()

    def assigning(self, variables: Iterable[tf.Variable] | None = None) -> AbstractContextManager[None]:
        return nullcontext()

    def prepare_call(self, function: Callable[[], Any]) -> Callable[[], None]:
        def call() -> None:
            function()
            self.wait()

        return call

    def wait(self) -> None:
        tf.test.experimental.sync_devices()

    def on_batches(
        self, function: Callable[[Any], Any], variables: Iterable[tf.Variable] = ()
    ) -> Callable[[Any, int], None]:
        @tf.function(autograph=False)
        def run(batches: Any, count: tf.Tensor) -> None:
            run_on_batches(self.strategy, batches, count, function)

        return lambda batches, count: run(batches, tf.constant(count))

    def on_replicas(self, function: Callable[..., Any], variables: Iterable[tf.Variable] = ()) -> Callable[..., Any]:
        return tf.function(lambda *arguments: self.strategy.run(function, args=arguments), autograph=False)

    def count_bytes(self) -> None:
        return None
