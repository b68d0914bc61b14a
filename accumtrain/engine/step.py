"""The updates of a window: its micro-steps are counted, and a commit is made of a full window."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

from accumtrain.engine.programs import Programs, TensorFlowPrograms
from accumtrain.engine.window import Window

SECONDS_PER_CALL = 0.5
WORTH_TOGETHER = 10  # smallest number of updates to make in one call; for fewer the time of the calls is negligible


@final
class Step:
    """Run micro-steps and commits on all replicas. Create it inside the strategy's scope.

    A loss of the whole batch takes two passes over a window (Gao et al. 2021, arXiv:2101.06983). Its micro-batches and
    their outputs are kept until all of them are there. Then the loss of all outputs and its gradient are computed. Each
    micro-batch is computed again, and back-propagates its part of that gradient.

    Args:
        programs: the compiled functions; None is those of TensorFlow, with the current strategy.
        xla: compile micro-steps with XLA. TensorFlow's own kernels compute a loss of the whole batch.
        eager: run micro-steps without graphs, slowly, so that a debugger and prints work inside layers.
    """

    def __init__(self, window: Window, programs: Programs | None = None, *, xla: bool = False, eager: bool = False):
        self._window = window
        self.programs = programs or TensorFlowPrograms(window, xla=xla, eager=eager)
        self._micro_steps_held: int | None = 0  # since the last commit; None if a call has failed amid them
        self._held: list[tuple[Any, Any]] = []  # micro-batches and their outputs, before their loss is computed

    @property
    def makes_updates_together(self) -> bool:
        """Return whether `updates` can make several updates in one call."""
        return self.programs.makes_updates_together

    def accumulate(self, batches: Any, count: int = 1) -> None:
        """Make a micro-step with each of the next `count` global micro-batches of the iterator `batches`.

        If it raises, as where the batches end, the micro-steps before that are in the window. Drop them, or commit with
        partial=True.
        """
        held = self._micro_steps_held
        with self._changing_window(None if held is None else held + count):
            if self._window.whole_batch:
                self._hold(batches, count)
            else:
                self.programs.micro_steps(batches, count)

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
            self.go_back()
            return self.programs.commit()

    def go_back(self) -> None:
        """Make the second pass of a loss of the whole batch over the micro-batches that are held.

        It adds their gradients to the sums. A commit does it, too. With other losses no micro-batch is held.
        """
        if not self._held:
            return
        batches, outputs = ([*each] for each in zip(*self._held, strict=True))
        self._held.clear()
        gradients = self.programs.differentiate(batches, outputs)
        del outputs  # the gradient takes its place
        for batch, at_outputs in zip(batches, gradients, strict=True):
            self.programs.again(batch, at_outputs)

    def drop(self) -> None:
        """Clear the window: the micro-steps since the last commit have no effect."""
        self._held.clear()
        self.programs.clear()
        self._micro_steps_held = 0

    def updates(self, batches: Any, count: int = 1) -> dict[str, Any]:
        """Make `count` whole updates in one call, with the same bits as by calls of `accumulate` and `commit`.

        It ends early after an update that is not finite, or that leaves a state that is not.

        Returns:
            The scalars of the last update; `exact` and `compared` are those of all updates. With SUM before its name:
            the sum of the loss and of each metric over the examples of all updates, and their weight.

        Raises:
            ValueError: updates can't be made together, or the window is not empty; nothing is changed.
        """
        if not self.makes_updates_together:
            raise ValueError(
                "updates: JAX, eager micro-steps and a loss of the whole batch make one update at a time; call "
                "accumulate and commit"
            )
        if self._micro_steps_held != 0:
            raise ValueError("updates: the window holds micro-steps already; commit() or drop() them before")
        with self._changing_window(micro_steps_after=0):
            return self.programs.updates(batches, count)

    def prepare(self, batches: Any) -> Any:
        """Compile what the first update needs. Return the micro-step with its `graph`; None if it is not known yet."""
        return self.programs.prepare(batches)

    @contextmanager
    def _changing_window(self, micro_steps_after: int | None) -> Iterator[None]:
        """Count the micro-steps of the window as unknown if the block raises."""
        self._micro_steps_held = None
        yield
        self._micro_steps_held = micro_steps_after

    # ---- a loss of the whole batch ----

    def _hold(self, batches: Any, count: int) -> None:
        for _ in range(count):
            batch = next(batches)
            self._held.append((batch, self.programs.outputs(batch)))
            if len(self._held) == self._window.micro_steps:
                self.go_back()


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
