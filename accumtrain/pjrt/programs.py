"""Updates by JAX: a micro-step and a commit are a program each, so interrupts, drop and progress stay as they are.

TensorFlow computes a loss of the whole batch on the host, as a loss may have operations that XLA does not know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import tensorflow as tf

from accumtrain.engine.compiled_function import NO_GRAPH_OPTIMIZER, CompiledFunction
from accumtrain.engine.programs import check_draws
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
        ConfigError: the loss is of the whole batch, and there are several replicas.
    """

    makes_updates_together = False

    def __init__(self, window: Window, runtime: JaxRuntime):
        if window.whole_batch and runtime.replicas > 1:
            raise ConfigError(
                f"device.runtime=jax: a loss of the whole batch takes one device, and there are {runtime.replicas}; "
                f"use device.runtime=tensorflow{window.loss_function.or_say}"
            )
        self._window, self._runtime = window, runtime
        self.micro_step: CompiledProgram | None = None
        self.update: CompiledProgram | None = None
        self._spec: Any = None  # of the batches that the micro-step takes
        self._outputs = runtime.on_replicas(self._compute_outputs, window.variables)
        self._loss = CompiledFunction(window.differentiate, NO_GRAPH_OPTIMIZER)
        self._again = runtime.on_replicas(window.accumulate, window.variables)

    def prepare(self, batches: Any) -> CompiledProgram | None:
        """Trace, lower and compile both programs, or the micro-step again for batches of another shape.

        Raises:
            tf.errors.ResourceExhaustedError: they take more memory than the limit, or than there is.
        """
        if self._window.whole_batch:  # then the first micro-batch is traced when it is there
            return None
        if self.micro_step is None or self._spec != batches.element_spec:
            window, spec = self._window, batches.element_spec
            micro_step = self._runtime.compile_for_batches(window.accumulate, spec, window.variables)
            self._runtime.prepare(micro_step)
            self.micro_step, self._spec = micro_step, spec
            self._prepare_update()
        return self.micro_step

    def _prepare_update(self) -> CompiledProgram:
        """Return the program of the commit, which needs to know what a micro-step reaches."""
        if self.update is None:
            window = self._window
            self.update = self._runtime.compile(window.commit, variables=window.variables, reduced=window.sums)
            self._runtime.prepare(self.update)
        return self.update

    def micro_steps(self, batches: Any, count: int) -> None:
        micro_step = self.prepare(batches)
        assert micro_step is not None
        self._runtime.run_on_batches(lambda _: micro_step, batches, count)

    def commit(self) -> dict[str, Any]:
        update = self._prepare_update()
        with memory_errors():
            scalars: dict[str, Any] = jax.device_get(update([]))
            return scalars

    def clear(self) -> None:
        with self._runtime.assigning(self._window.buffers):
            self._window.clear()

    def updates(self, batches: Any, count: int) -> dict[str, Any]:
        raise NotImplementedError  # as makes_updates_together is False

    # ---- a loss of the whole batch ----

    def outputs(self, batch: Any) -> Any:
        return self._outputs(batch)

    def _compute_outputs(self, batch: Any) -> Any:
        outputs = self._window.compute_outputs(batch)
        check_draws(tf.compat.v1.get_default_graph(), self._window.loss_function.or_say)
        return outputs

    def differentiate(self, batches: list[Any], outputs: list[Any]) -> list[Any]:
        changed = self._loss.get_concrete_function(batches, outputs).graph.variables
        with self._runtime.assigning(changed):
            gradients: list[Any] = self._loss(batches, outputs)
            return gradients

    def again(self, batch: Any, at_outputs: Any) -> None:
        self._again(batch, at_outputs)
