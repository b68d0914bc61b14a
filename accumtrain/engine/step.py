"""The compiled side of training: the window's replica functions, run by the strategy inside tf.functions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from accumtrain.backprop.tracing import for_xla
from accumtrain.engine.compiled_function import FUSION_ONLY, NO_GRAPH_OPTIMIZER, CompiledFunction
from accumtrain.engine.window import Window

SUM = "sum_"  # before the name of a mean: its sum over the examples of all updates of a call
WEIGHT = "weight"  # of the examples of an update, by which its means are divided
SECONDS_PER_CALL = 0.5
WORTH_TOGETHER = 10  # smallest number of updates to make in one call; for fewer the time of the calls is negligible


class Step:
    """Run micro-steps and commits on all replicas. Create it inside the strategy's scope.

    Args:
        strategy: None is the current one.
        xla: compile micro-steps with XLA. The commit would gain nothing from it.
        eager: run micro-steps without graphs, slowly, so that a debugger and prints work inside layers.
    """

    def __init__(
        self,
        window: Window,
        strategy: tf.distribute.Strategy | None = None,
        *,
        xla: bool = False,
        eager: bool = False,
    ):
        self._window, self._strategy = window, strategy or tf.distribute.get_strategy()
        on_tpu = isinstance(self._strategy, tf.distribute.TPUStrategy)  # which compiles whatever it runs
        self._micro_step = for_xla()(window.accumulate) if xla else window.accumulate
        if xla and not on_tpu:
            self._micro_step = tf.function(self._micro_step, autograph=False, jit_compile=True)
        self._update = for_xla()(window.commit) if on_tpu else window.commit
        self.compiled_micro_steps = CompiledFunction(self._accumulate, FUSION_ONLY)
        self.compiled_commit = CompiledFunction(self._commit, NO_GRAPH_OPTIMIZER)
        # what it calls is optimized as a part of it: without fusion some activations would have other bits here
        self.compiled_updates = CompiledFunction(self._updates, FUSION_ONLY)
        self._micro_steps_held: int | None = 0  # since the last commit; None if a call has failed amid them
        self.eager, self.makes_updates_together = eager, not eager

    def accumulate(self, batches: Any, count: int = 1) -> None:
        """Make a micro-step with each of the next `count` global micro-batches of the iterator `batches`.

        If it raises, as where the batches end, the micro-steps before that are in the window. Drop them, or commit with
        partial=True.
        """
        held = self._micro_steps_held
        with self._changing_window(None if held is None else held + count):
            self._run_micro_steps(batches, count)

    def commit(self, *, partial: bool = False) -> dict[str, Any]:
        """Make the update of the window. Return the scalars of `Window.commit`, which are equal on all replicas.

        Args:
            partial: allow any number of micro-steps. The update is that of the examples in the window.

        Raises:
            ValueError: the number of micro-steps is not that of a window, or not known; nothing is changed.
        """
        held, expected = self._micro_steps_held, self._window.micro_steps
        if not partial and held != expected:
            many, more = ("an unknown number", "") if held is None else (held, "accumulate as many, ")
            raise ValueError(
                f"the window holds {many} of its {expected} micro-steps: {more}drop() them to begin anew, or "
                "commit(partial=True) to make the update of what it holds"
            )
        with self._changing_window(micro_steps_after=0):
            return self._run_commit()

    def drop(self) -> None:
        """Clear the window: the micro-steps since the last commit have no effect."""
        for buffer in self._window.buffers:
            buffer.assign(tf.zeros(buffer.shape, buffer.dtype))
        self._micro_steps_held = 0

    def updates(self, batches: Any, count: int = 1) -> dict[str, tf.Tensor]:
        """Make `count` whole updates in one call, with the same bits as by calls of `accumulate` and `commit`.

        It ends early after an update that is not finite, or that leaves a state that is not.

        Returns:
            The scalars of the last update, but `exact` and `compared` of all; and, with SUM before its name, of the
            loss and each metric the sum over the examples of all updates, and the weight of these.

        Raises:
            ValueError: the step is eager, or the window is not empty; nothing is changed.
        """
        if self.eager:
            raise ValueError("updates: eager micro-steps can't run inside a graph; call accumulate and commit")
        if self._micro_steps_held != 0:
            raise ValueError("updates: the window holds micro-steps already; commit() or drop() them before")
        with self._changing_window(micro_steps_after=0):
            return self.compiled_updates(batches, tf.constant(count))

    def prepare(self, batches: Any) -> Any:
        """Trace the micro-step. The commit is then traced in another thread, while the first micro-steps run.

        Returns:
            The micro-step as a concrete function; None if it is eager.
        """
        if self.eager:
            return None
        micro_step = self.compiled_micro_steps.get_concrete_function(batches, tf.constant(1))
        self.compiled_commit.trace_ahead()
        return micro_step

    @contextmanager
    def _changing_window(self, micro_steps_after: int | None) -> Iterator[None]:
        """Count the micro-steps of the window as unknown if the block raises."""
        self._micro_steps_held = None
        yield
        self._micro_steps_held = micro_steps_after

    # ---- calls ----

    def _run_micro_steps(self, batches: Any, count: int) -> None:
        run = self._accumulate if self.eager else self.compiled_micro_steps
        run(batches, tf.constant(count))

    def _run_commit(self) -> dict[str, Any]:
        return self.compiled_commit()

    # ---- functions that are compiled ----

    def _accumulate(self, batches: Any, count: tf.Tensor) -> None:
        run_on_batches(self._strategy, batches, count, self._micro_step)

    def _commit(self) -> dict[str, tf.Tensor]:
        results = self._strategy.run(self._update)
        local = {name: self._strategy.experimental_local_results(value) for name, value in results.items()}
        scalars = {name: values[0] for name, values in local.items()}
        # each replica looks at its own copy
        return scalars | {"state_finite": tf.reduce_all(tf.stack(local["state_finite"]))}

    def _updates(self, batches: Any, count: tf.Tensor) -> dict[str, tf.Tensor]:
        names = ("loss", *self._window.metrics)
        self.compiled_micro_steps.get_concrete_function(batches, tf.constant(1))  # as the commit needs what it finds

        def body(
            done: tf.Tensor, update: dict[str, tf.Tensor], sums: dict[str, tf.Tensor]
        ) -> tuple[tf.Tensor, dict[str, tf.Tensor], dict[str, tf.Tensor]]:
            self.compiled_micro_steps(batches, tf.constant(self._window.micro_steps))
            before, update = update, self.compiled_commit()
            for name in ("exact", "compared"):  # streams out of range end the loop: that update is not finite
                update[name] &= before[name]
            weight = tf.cast(update[WEIGHT], tf.float64)  # a sum of many updates is rounded less
            added = {WEIGHT: weight, **{name: tf.cast(update[name], tf.float64) * weight for name in names}}
            return done + 1, update, {name: total + added[name] for name, total in sums.items()}

        scalars = self.compiled_commit.get_concrete_function().structured_outputs
        # before the first update all that is a bool is true
        start = {name: tf.ones(scalar.shape, scalar.dtype) for name, scalar in scalars.items()}
        nothing = dict.fromkeys((WEIGHT, *names), tf.zeros([], tf.float64))
        _, last, sums = tf.while_loop(
            lambda done, update, sums: (done < count) & update["finite"] & update["state_finite"],
            body,
            (tf.constant(0), start, nothing),
            parallel_iterations=1,
        )
        return last | {f"{SUM}{name}": total for name, total in sums.items()}


def run_on_batches(
    strategy: tf.distribute.Strategy, batches: Any, count: tf.Tensor, function: Callable[[Any], None]
) -> None:
    """Run a replica function on each of the next `count` batches of an iterator, one after the other."""

    def body(done: tf.Tensor) -> tuple[tf.Tensor]:
        strategy.run(function, args=(batches.get_next(),))
        return (done + 1,)

    # parallel iterations would hold the activations of several micro-batches
    tf.while_loop(lambda done: done < count, body, [tf.constant(0)], parallel_iterations=1)


class CallLength:
    """The number of micro-steps or updates that one compiled call makes.

    It is large enough to hide Python's time, and small enough to respond soon. The first call has length 1; the
    duration of each gives the length of the next.

    Args:
        least: if fewer than this fit into SECONDS_PER_CALL, the length is 1, as longer calls are not worth compiling.
    """

    def __init__(self, least: int = 1) -> None:
        self._least, self._length = least, 1

    def next(self, remaining: int) -> int:
        return min(self._length, remaining)

    @contextmanager
    def timed(self, count: int) -> Iterator[None]:
        started = time.perf_counter()
        yield
        seconds = max(time.perf_counter() - started, 1e-6)
        fitting = int(SECONDS_PER_CALL * count / seconds)
        # at most doubled, as the first calls also trace and compile
        self._length = max(1, min(2 * self._length, fitting)) if fitting >= self._least else 1
