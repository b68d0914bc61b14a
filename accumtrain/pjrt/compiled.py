"""A program on its devices: compiled by XLA, it changes the state there in place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import tensorflow as tf
from jax.sharding import Mesh, NamedSharding

from accumtrain.engine.replica import as_replica
from accumtrain.pjrt.hand_over import hand_over
from accumtrain.pjrt.program import lower
from accumtrain.pjrt.state import EACH, REPLICAS, SAME, State, is_sum

PLATFORMS = {"gpu": "cuda"}  # names for jax.export that are not those of a device


class CompiledProgram:
    """A function of one replica, compiled for each device of a mesh.

    Args:
        function: reads and writes variables, and returns a structure of tensors, which are equal on all replicas.
        inputs: nested tf.TensorSpec of each of its arguments, for one replica. A call is given those of all, joined.
        variables: those that it may use through their handles.
        reduced: sums whose total over all replicas the function is given.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Iterable[Any],
        variables: Iterable[tf.Variable],
        reduced: Collection[tf.Variable],
        state: State,
        mesh: Mesh,
        *,
        rounds: bool,
    ):
        def of_replica(index: tf.Tensor, *arguments: Any) -> Any:
            with as_replica(index, mesh.size):
                return function(*arguments)

        program = lower(of_replica, [tf.TensorSpec([], tf.int32), *inputs], variables)
        platform = mesh.devices.flat[0].platform
        handed = hand_over(program.hlo, PLATFORMS.get(platform, platform), rounds=rounds)
        first = program.inputs
        new_values = {place - first: result for place, result in handed.updated.items()}
        others = [result for result in range(handed.results) if result not in set(new_values.values())]
        captured = program.captured
        self._state, self._outputs = state, program.outputs
        self._written = [value for place, value in enumerate(captured) if place in new_values]
        self._read = [value for place, value in enumerate(captured) if place not in new_values]
        totals = {variable.ref() for variable in reduced}

        def call(indices: Any, written: list[Any], read: list[Any], inputs: list[Any]) -> tuple[list[Any], list[Any]]:
            changing, fixed = iter(written), iter(read)
            values = [next(changing if place in new_values else fixed) for place in range(len(captured))]
            values = [each[0] if is_sum(value) else each for value, each in zip(captured, values, strict=True)]
            chosen = [place for place, value in enumerate(captured) if value.ref() in totals]
            for place, total in zip(chosen, jax.lax.psum([values[place] for place in chosen], REPLICAS), strict=True):
                values[place] = total
            results = handed.call(indices[0], *inputs, *values)
            made = [results[new_values[place]] for place in sorted(new_values)]
            made = [
                each[jnp.newaxis] if is_sum(value) else each for value, each in zip(self._written, made, strict=True)
            ]
            return made, [results[each] for each in others]

        written, read = ([EACH if is_sum(value) else SAME for value in each] for each in (self._written, self._read))
        mapped = jax.shard_map(
            call,
            mesh=mesh,
            in_specs=(EACH, written, read, [EACH] * (first - 1)),
            out_specs=(written, [SAME] * len(others)),
            check_vma=False,
        )
        self._function = jax.jit(mapped, donate_argnums=1)
        each = NamedSharding(mesh, EACH)
        self._indices = jax.device_put(jnp.arange(mesh.size, dtype=jnp.int32), each)
        self._inputs = [
            jax.ShapeDtypeStruct((mesh.size * given.shape[0], *given.shape[1:]), given.dtype, sharding=each)
            for given in handed.arguments[1:first]
        ]
        self._compiled: Any = None

    def compile(self) -> None:
        """Compile the program. The first call does it, too."""
        self._compiled = self._function.lower(self._indices, *self._buffers(), self._inputs).compile()

    def __call__(self, inputs: list[Any]) -> Any:
        """Run the function on buffers of the devices. Return its structure of buffers."""
        if self._compiled is None:
            self.compile()
        written, others = self._compiled(self._indices, *self._buffers(), inputs)
        self._state.write(self._written, written)
        return None if self._outputs is None else tf.nest.pack_sequence_as(self._outputs, others)

    @property
    def temporary_bytes(self) -> int:
        """Bytes on a device beside the arguments and their new values: activations, gradients and other results."""
        found = self._compiled.memory_analysis()
        return int(found.temp_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes)

    def _buffers(self) -> tuple[list[Any], list[Any]]:
        return [self._state.read(value) for value in self._written], [self._state.read(value) for value in self._read]
