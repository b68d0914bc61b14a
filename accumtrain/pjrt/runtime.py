"""JAX in the place of TensorFlow's runtime: the same functions, compiled by its XLA and run on its devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax.sharding import Mesh

from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.pjrt.compiled import CompiledProgram
from accumtrain.pjrt.feed import Feed
from accumtrain.pjrt.memory import check_limit, memory_errors
from accumtrain.pjrt.programs import JaxPrograms
from accumtrain.pjrt.state import REPLICAS, State


class JaxRuntime:
    """See Runtime. The devices are JAX's, of one machine, and the state is there.

    Args:
        devices: a replica computes on each.
        rounds: the devices may round the factors of float32 products, as with TensorFloat-32.
        limit: bytes that the state and the largest program may take on the CPU, or on each GPU; None is no limit.
        stale: fills variables whose values a program has changed on the devices, until they are read; -1 fills those of
            integers. None leaves them as they are. Tests give NaN, so that a forgotten `reading` shows.
    """

    xla = True

    def __init__(
        self,
        devices: Sequence[jax.Device],
        *,
        rounds: bool = False,
        limit: int | None = None,
        stale: float | None = None,
    ):
        self.strategy = tf.distribute.get_strategy()
        self._mesh, self._rounds = Mesh(np.array(devices), (REPLICAS,)), rounds
        self._limit, self._first_device = limit, devices[0]
        self.plans_bytes = not devices[0].memory_stats()
        self._state = State(self._mesh, stale)
        self._programs: list[CompiledProgram] = []
        self._feed = Feed(self._mesh)

    def build_step(self, window: Window, *, eager: bool = False) -> Step:
        return Step(window, JaxPrograms(window, self))

    def compile(
        self,
        function: Callable[..., Any],
        inputs: Iterable[Any] = (),
        variables: Iterable[tf.Variable] = (),
        reduced: Iterable[tf.Variable] = (),
    ) -> CompiledProgram:
        """Return a function of variables as a program, traced and lowered. See CompiledProgram."""
        program = CompiledProgram(
            function,
            inputs,
            variables,
            reduced,
            self._state,
            self._mesh,
            rounds=self._rounds,
        )
        self._programs.append(program)
        return program

    def prepare(self, *programs: CompiledProgram) -> None:
        """Compile programs.

        Raises:
            tf.errors.ResourceExhaustedError: they take more memory than the limit, or than there is.
        """
        with memory_errors():
            for program in programs:
                program.compile()
        sharing = self.replicas if self.on_cpu else 1  # devices of one memory
        check_limit(sharing * self._planned_bytes, self._limit)

    def compile_for_batches(
        self, function: Callable[[Any], None], spec: Any, variables: Iterable[tf.Variable] = ()
    ) -> CompiledProgram:
        """Return the program of a function of one batch. It returns a number, which is there when it has ended.

        Args:
            spec: nested tf.TensorSpec of the batches of all replicas, joined.
        """
        one = tf.nest.map_structure(self._part_of, spec)

        def counted(batch: Any) -> tf.Tensor:
            function(batch)
            return tf.constant(1)

        return self.compile(counted, [one], variables)

    def on_batches(
        self, function: Callable[[Any], Any], variables: Iterable[tf.Variable] = ()
    ) -> Callable[[Any, int], None]:
        programs: dict[tuple[Any, ...], CompiledProgram] = {}  # by the shapes of a batch: the last may be smaller

        def program_for(batches: Any, buffers: Sequence[jax.Array]) -> CompiledProgram:
            shapes = tuple(buffer.shape for buffer in buffers)
            if shapes not in programs:
                specs = [tf.TensorSpec(buffer.shape, buffer.dtype) for buffer in buffers]
                spec = tf.nest.pack_sequence_as(batches.element_spec, specs)
                programs[shapes] = self.compile_for_batches(function, spec, variables)
                self.prepare(programs[shapes])
            return programs[shapes]

        return lambda batches, count: self.run_on_batches(partial(program_for, batches), batches, count)

    def on_replicas(self, function: Callable[..., Any], variables: Iterable[tf.Variable] = ()) -> Callable[..., Any]:
        programs: dict[Any, CompiledProgram] = {}  # by the shapes of the arguments

        def call(*arguments: Any) -> Any:
            leaves = tf.nest.map_structure(tf.convert_to_tensor, arguments)
            specs = tuple(self._part_of(tf.TensorSpec.from_tensor(leaf)) for leaf in tf.nest.flatten(leaves))
            if specs not in programs:
                of_one = tf.nest.pack_sequence_as(leaves, specs)
                programs[specs] = self.compile(function, of_one, variables)
                self.prepare(programs[specs])
            with memory_errors():
                made = jax.device_get(programs[specs](self._feed.put(leaves)))
                return None if made is None else tf.nest.map_structure(tf.constant, made)

        return call

    def run_on_batches(
        self, program_for: Callable[[Sequence[jax.Array]], CompiledProgram], batches: Any, count: int
    ) -> None:
        """Run the program for each of the next `count` batches. At most two are computed or waited for at a time."""
        before = None
        with memory_errors():
            for _ in range(count):
                buffers = self._feed.take(batches)
                made = program_for(buffers)(buffers)
                self._feed.look_ahead(batches)
                if before is not None:
                    before.block_until_ready()
                before = made

    @property
    def on_cpu(self) -> bool:
        return bool(self._first_device.platform == "cpu")

    def prepare_call(self, function: Callable[[], Any]) -> Callable[[], None]:
        program = self.compile(function)
        self.prepare(program)
        return lambda: jax.block_until_ready(program([]))

    def wait(self) -> None:
        with memory_errors():
            self._state.wait()

    @property
    def replicas(self) -> int:
        return self._mesh.size

    def _part_of(self, spec: tf.TensorSpec) -> tf.TensorSpec:
        """Return the part of a replica of what is joined along the first axis. A scalar is that of all."""
        if not spec.shape.rank:
            return spec
        return tf.TensorSpec([spec.shape[0] // self.replicas, *spec.shape[1:]], spec.dtype)

    def reading(self, variables: Iterable[tf.Variable] | None = None) -> AbstractContextManager[None]:
        return self._state.reading(variables)

    def assigning(self, variables: Iterable[tf.Variable] | None = None) -> AbstractContextManager[None]:
        return self._state.assigning(variables)

    def count_bytes(self) -> tuple[int, int] | tuple[None, None]:
        if not self._planned_bytes:  # nothing is compiled
            return None, None
        held = self.replicas * self._state.bytes
        if self.plans_bytes:
            return held, self.replicas * self._planned_bytes
        return held, sum(device.memory_stats()["peak_bytes_in_use"] for device in self._mesh.devices.flat)

    @property
    def _planned_bytes(self) -> int:
        """The state on a device, and what the largest program takes beside it."""
        return self._state.bytes + max((program.temporary_bytes for program in self._programs), default=0)
