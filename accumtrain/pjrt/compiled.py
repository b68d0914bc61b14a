"""A program on its device: compiled by XLA, it changes the state there in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import tensorflow as tf

from accumtrain.pjrt.hand_over import hand_over
from accumtrain.pjrt.program import lower
from accumtrain.pjrt.state import State

# Without these JAX 0.10 takes barriers away before it orders a CPU's operations, and orders them for speed alone.
# Reversal would then save no memory. JAX 0.12 does neither.
CPU_OPTIONS = {
    "xla_disable_hlo_passes": "cse_barrier_expander",
    "xla_cpu_enable_concurrency_optimized_scheduler": False,
}
PLATFORMS = {"gpu": "cuda"}  # names for jax.export that are not those of a device


class CompiledProgram:
    """A function that is compiled for one device, and changes the state there in place.

    Args:
        function: reads and writes variables, and returns a structure of tensors.
        inputs: nested tf.TensorSpec of each of its arguments.
        variables: those that it may use through their handles.

    Attributes:
        graph: of TensorFlow, from which the program was lowered.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Iterable[Any],
        variables: Iterable[tf.Variable],
        state: State,
        device: jax.Device,
        *,
        rounds: bool,
    ):
        program = lower(function, list(inputs), variables)
        handed = hand_over(program.hlo, PLATFORMS.get(device.platform, device.platform), rounds=rounds)
        self.graph, self._options = program.graph, CPU_OPTIONS if device.platform == "cpu" else None
        self._state, self._outputs, self._inputs = state, program.outputs, handed.arguments[: program.inputs]
        new_values = {place - program.inputs: result for place, result in handed.updated.items()}
        self._written = [value for place, value in enumerate(program.captured) if place in new_values]
        self._read = [value for place, value in enumerate(program.captured) if place not in new_values]
        others = [result for result in range(handed.results) if result not in set(new_values.values())]

        def call(written: list[Any], read: list[Any], inputs: list[Any]) -> tuple[list[Any], list[Any]]:
            changing, fixed = iter(written), iter(read)
            captured = [next(changing if place in new_values else fixed) for place in range(len(program.captured))]
            results = handed.call(*inputs, *captured)
            return [results[new_values[place]] for place in sorted(new_values)], [results[each] for each in others]

        self._function = jax.jit(call, donate_argnums=0)
        self._compiled: Any = None

    def compile(self) -> None:
        """Compile the program, unless it is. The first call does it, too."""
        if self._compiled is None:
            self._compiled = self._function.lower(*self._buffers(), self._inputs).compile(self._options)

    def __call__(self, inputs: list[Any]) -> Any:
        """Run the function on buffers of the device. Return its structure of buffers."""
        self.compile()
        written, others = self._compiled(*self._buffers(), inputs)
        self._state.write(self._written, written)
        return None if self._outputs is None else tf.nest.pack_sequence_as(self._outputs, others)

    @property
    def temporary_bytes(self) -> int:
        """Bytes beside the state, as the compiler plans them: inputs, activations, gradients and other results."""
        planned = self._compiled.memory_analysis()
        inputs = sum(each.size * each.dtype.itemsize for each in self._inputs)
        return int(inputs + planned.temp_size_in_bytes + planned.output_size_in_bytes - planned.alias_size_in_bytes)

    def _buffers(self) -> tuple[list[Any], list[Any]]:
        return [self._state.read(value) for value in self._written], [self._state.read(value) for value in self._read]
