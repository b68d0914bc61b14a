"""Updates by JAX: a micro-step and a commit are a program each, so interrupts, drop and progress stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import tensorflow as tf

from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.pjrt.compiled import CompiledProgram

if TYPE_CHECKING:
    from accumtrain.pjrt.runtime import JaxRuntime


class JaxStep(Step):
    """See Step. The scalars of a commit are NumPy's."""

    def __init__(self, window: Window, runtime: JaxRuntime):
        super().__init__(window)
        self.makes_updates_together = False
        self._runtime = runtime
        self._programs: tuple[CompiledProgram, CompiledProgram] | None = None

    def prepare(self, batches: Any) -> None:
        """Trace, lower and compile both programs."""
        if self._programs is None:
            variables = self._window.variables
            micro_step = self._runtime.compile_for_batches(self._window.accumulate, batches, variables)
            commit = self._runtime.compile(self._window.commit, variables=variables, reduced=self._window.sums)
            self._programs = micro_step, commit
            micro_step.compile()
            commit.compile()

    def publish_sums(self) -> None:
        self._runtime.publish(self._window.buffers)

    def drop(self) -> None:
        super().drop()
        self._runtime.reload(self._window.buffers)

    def updates(self, batches: Any, count: int = 1) -> dict[str, tf.Tensor]:
        """Raise ValueError: there is no program of several updates."""
        raise ValueError("updates: JAX makes one update at a time; call accumulate and commit")

    def _run_micro_steps(self, batches: Any, count: int) -> None:
        self.prepare(batches)
        assert self._programs is not None
        self._runtime.run_on_batches(self._programs[0], batches, count)

    def _run_commit(self) -> dict[str, Any]:
        assert self._programs is not None
        return jax.device_get(self._programs[1]([]))
