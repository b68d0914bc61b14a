"""A program on its devices: compiled by XLA, it changes the state there in place."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import tensorflow as tf
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from accumtrain.engine.replica import as_replica
from accumtrain.pjrt.feed import BATCHES_HELD
from accumtrain.pjrt.hand_over import hand_over
from accumtrain.pjrt.program import lower
from accumtrain.pjrt.state import EACH, REPLICAS, SAME, State, is_sum, part_of


class CompiledProgram:
    """A function of one replica, compiled for each device of a mesh.

    Args:
        function: reads and writes variables, and returns a structure of tensors, which are equal on all replicas.
        inputs: nested tf.TensorSpec of each of its arguments, for one replica. A call is given those of all, joined.
        variables: those that it may use through their handles.
        reduced: sums whose total over all replicas the function is given.
        rounds: a device may round the factors of float32 products.

    Attributes:
        graph: of TensorFlow, from which the program was lowered.
        temporary_bytes: bytes on a device beside the state: the inputs of BATCHES_HELD calls, and the temporaries and
            results that the compiler has planned. 0 before it is compiled.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Iterable[Any],
        variables: Iterable[tf.Variable],
        reduced: Iterable[tf.Variable],
        state: State,
        mesh: Mesh,
        *,
        rounds: bool,
    ):
        def of_replica(index: tf.Tensor, *arguments: Any) -> Any:
            with as_replica(index, mesh.size):
                return function(*arguments)

        program = lower(of_replica, [tf.TensorSpec([], tf.int32), *inputs], variables)
        handed = hand_over(program.hlo, rounds=rounds)
        arguments = handed.arguments[1 : program.inputs]
        each = NamedSharding(mesh, EACH)
        self.graph, self._state, self._outputs = program.graph, state, program.outputs
        self._options = _compiler_options(mesh.devices.flat[0].platform)
        self._handed = handed
        self._totals = {variable.ref() for variable in reduced}
        self._indices = jax.device_put(jnp.arange(mesh.size, dtype=jnp.int32), each)
        parts = [part_of(len(given.shape)) for given in arguments]
        self._inputs = [
            jax.ShapeDtypeStruct(
                tuple(size * mesh.size if axis == 0 else size for axis, size in enumerate(given.shape)),
                given.dtype,
                sharding=NamedSharding(mesh, part),
            )
            for given, part in zip(arguments, parts, strict=True)
        ]
        captured = dict(enumerate(program.captured, program.inputs))  # by argument
        self._written = [captured[argument] for argument in handed.written]
        self._read = [captured[argument] for argument in handed.read if argument in captured]
        of_replicas = jax.shard_map(
            self._run_replica,
            mesh=mesh,
            in_specs=(EACH, _parts(self._written), _parts(self._read), parts),
            out_specs=(_parts(self._written), [SAME] * len(handed.others)),
            check_vma=False,
        )
        self._function = jax.jit(of_replicas, donate_argnums=1)
        self._compiled: Any = None
        self.temporary_bytes = 0

    def compile(self) -> None:
        """Compile the program, unless it is. The first call does it, too."""
        if self._compiled is None:
            lowered = self._function.lower(self._indices, *self._buffers(), self._inputs)
            self._compiled = lowered.compile(compiler_options=self._options)
            self.temporary_bytes = self._count_temporary_bytes()

    def __call__(self, inputs: list[Any]) -> Any:
        """Run the function on buffers of the devices. Return its structure of buffers."""
        self.compile()
        written, others = self._compiled(self._indices, *self._buffers(), inputs)
        self._state.write(self._written, written)
        return None if self._outputs is None else tf.nest.pack_sequence_as(self._outputs, others)

    def _count_temporary_bytes(self) -> int:
        planned = self._compiled.memory_analysis()
        inputs = sum(each.size * each.dtype.itemsize for each in self._inputs) // self._indices.size
        results = planned.output_size_in_bytes - planned.alias_size_in_bytes
        return int(BATCHES_HELD * inputs + planned.temp_size_in_bytes + results)

    def _buffers(self) -> tuple[list[Any], list[Any]]:
        return [self._state.read(value) for value in self._written], [self._state.read(value) for value in self._read]

    def _run_replica(
        self, index: jax.Array, written: Sequence[Any], read: Sequence[Any], inputs: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Return the new values of `written`, and the other results. JAX traces this."""
        variables = [*self._written, *self._read]
        buffers = zip(variables, [*written, *read], strict=True)
        values = [buffer[0] if is_sum(variable) else buffer for variable, buffer in buffers]
        reduced = [number for number, variable in enumerate(variables) if variable.ref() in self._totals]
        for number, total in zip(reduced, jax.lax.psum([values[number] for number in reduced], REPLICAS), strict=True):
            values[number] = total
        first_read = len(written)
        made, others = self._handed.call_in_place(values[:first_read], [index[0], *inputs, *values[first_read:]])
        made = [new[jnp.newaxis] if is_sum(value) else new for value, new in zip(self._written, made, strict=True)]
        return made, others


def _parts(values: Collection[Any]) -> list[PartitionSpec]:
    return [EACH if is_sum(value) else SAME for value in values]


def _compiler_options(platform: str) -> dict[str, Any]:
    """Return the options of XLA by name.

    Without these options JAX 0.10 removes barriers on a CPU before it orders operations, and orders them for speed
    alone. Reversal would then save no memory. JAX 0.12 does neither.
    """
    if platform == "cpu":
        return {
            "xla_disable_hlo_passes": "cse_barrier_expander",
            "xla_cpu_enable_concurrency_optimized_scheduler": False,
        }
    same_bits = platform == "gpu" and os.environ.get("TF_DETERMINISTIC_OPS") in ("1", "true")
    return {"xla_gpu_exclude_nondeterministic_ops": True} if same_bits else {}
