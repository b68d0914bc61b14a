"""Updates by JAX: a micro-step and a commit are a program each, so interrupts, drop and progress stay as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from accumtrain.engine.window import Window
from accumtrain.errors import ConfigError
from accumtrain.pjrt.compiled import CompiledProgram
from accumtrain.pjrt.memory import memory_errors

if TYPE_CHECKING:
    from accumtrain.pjrt.runtime import JaxRuntime


class JaxPrograms:
    """See Programs. The scalars of a commit are NumPy's.

    Attributes:
        micro_step, update: compiled by `prepare`; None before.

    Raises:
        ConfigError: the loss is of the whole batch.
    """

    makes_updates_together = False

    def __init__(self, window: Window, runtime: JaxRuntime):
        if window.whole_batch:
            raise ConfigError(
                "device.runtime=jax: a loss of the whole batch computes with TensorFlow; leave it out, or use "
                "device.runtime=tensorflow"
            )
        self._window, self._runtime = window, runtime
        self.micro_step: CompiledProgram | None = None
        self.update: CompiledProgram | None = None
        self._spec: Any = None  # of the batches that the micro-step takes

    def prepare(self, batches: Any) -> CompiledProgram:
        """Trace, lower and compile both programs, or the micro-step again for batches of another shape.

        Raises:
            tf.errors.ResourceExhaustedError: they take more memory than the limit, or than there is.
        """
        if self.micro_step is None or self._spec != batches.element_spec:
            window, spec = self._window, batches.element_spec
            micro_step = self._runtime.compile_for_batches(window.accumulate, spec, window.variables)
            update = self.update or self._runtime.compile(
                window.commit, variables=window.variables, reduced=window.sums
            )
            self._runtime.prepare(micro_step, update)
            self.micro_step, self.update, self._spec = micro_step, update, spec
        return self.micro_step

    def micro_steps(self, batches: Any, count: int) -> None:
        micro_step = self.prepare(batches)
        self._runtime.run_on_batches(lambda _: micro_step, batches, count)

    def commit(self) -> dict[str, Any]:
        assert self.update is not None
        with memory_errors():
            scalars: dict[str, Any] = jax.device_get(self.update([]))
            return scalars

    def clear(self) -> None:
        with self._runtime.assigning(self._window.buffers):
            self._window.clear()

    # ---- what a step does not ask for ----

    def updates(self, batches: Any, count: int) -> dict[str, Any]:
        raise NotImplementedError

    def outputs(self, batch: Any) -> Any:
        raise NotImplementedError

    def differentiate(self, batches: list[Any], outputs: list[Any]) -> list[Any]:
        raise NotImplementedError

    def again(self, batch: Any, at_outputs: Any) -> None:
        raise NotImplementedError
