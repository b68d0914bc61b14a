"""Updates by JAX: a micro-step and a commit are a program each, so interrupts, drop and progress stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import tensorflow as tf

from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.pjrt.compiled import CompiledProgram
from accumtrain.pjrt.memory import memory_errors

if TYPE_CHECKING:
    from accumtrain.pjrt.runtime import JaxRuntime


class JaxStep(Step):
    """See Step. The scalars of a commit are NumPy's."""

    def __init__(self, window: Window, runtime: JaxRuntime):
        super().__init__(window)
        self.makes_updates_together = False
        self._runtime = runtime
        self._programs: tuple[CompiledProgram, CompiledProgram] | None = None
        self._spec: Any = None  # of the batches that the micro-step takes

    def prepare(self, batches: Any) -> CompiledProgram:
        """Trace, lower and compile both programs, or the micro-step again for batches of another shape. Return that.

        Raises:
            tf.errors.ResourceExhaustedError: they take more memory than the limit, or than there is.
        """
        if self._programs is None or self._spec != batches.element_spec:
            variables, before = self._window.variables, self._programs
            micro_step = self._runtime.compile_for_batches(self._window.accumulate, batches.element_spec, variables)
            commit = before[1] if before else self._compile_commit()
            self._runtime.prepare(micro_step, commit)
            self._programs, self._spec = (micro_step, commit), batches.element_spec
        return self._programs[0]

    def _compile_commit(self) -> CompiledProgram:
        window = self._window
        return self._runtime.compile(window.commit, variables=window.variables, reduced=window.sums)

    def drop(self) -> None:
        with self._runtime.assigning(self._window.buffers):
            super().drop()

    def updates(self, batches: Any, count: int = 1) -> dict[str, tf.Tensor]:
        """Raise ValueError: there is no program of several updates."""
        raise ValueError("updates: JAX makes one update at a time; call accumulate and commit")

    def _run_micro_steps(self, batches: Any, count: int) -> None:
        micro_step = self.prepare(batches)
        self._runtime.run_on_batches(lambda _: micro_step, batches, count)

    def _run_commit(self) -> dict[str, Any]:
        assert self._programs is not None
        with memory_errors():
            return jax.device_get(self._programs[1]([]))
