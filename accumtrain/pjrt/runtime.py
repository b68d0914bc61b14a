"""JAX in the place of TensorFlow's runtime: the same functions, compiled by its XLA and run on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import tensorflow as tf

from accumtrain.engine.runtime import Runtime
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.pjrt.compiled import CompiledProgram
from accumtrain.pjrt.feed import Feed
from accumtrain.pjrt.memory import check_limit, memory_errors
from accumtrain.pjrt.state import State
from accumtrain.pjrt.step import JaxStep


class JaxRuntime(Runtime):
    """The runtime of JAX on one device. The state is there; the variables get it by `publish`.

    Args:
        rounds: the device may round the factors of float32 products, as with TensorFloat-32.
        limit: bytes that the state and the largest program may take together; None is no limit.
    """

    counts_bytes = True

    def __init__(self, device: jax.Device, *, rounds: bool = False, limit: int | None = None):
        super().__init__(tf.distribute.get_strategy(), xla=True)
        self._device, self._rounds, self._limit = device, rounds, limit
        self.plans_bytes = not device.memory_stats()
        self._state = State(device)
        self._programs: list[CompiledProgram] = []
        self._feed: Feed | None = None

    def build_step(self, window: Window, *, eager: bool = False) -> Step:
        return JaxStep(window, self)

    def compile(
        self, function: Callable[..., Any], inputs: Iterable[Any] = (), variables: Iterable[tf.Variable] = ()
    ) -> CompiledProgram:
        """Return a function of variables as a program, traced and lowered. See CompiledProgram."""
        program = CompiledProgram(function, inputs, variables, self._state, self._device, rounds=self._rounds)
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
        check_limit(self._planned_bytes, self._limit)

    def compile_for_batches(
        self, function: Callable[[Any], None], batches: Any, variables: Iterable[tf.Variable] = ()
    ) -> CompiledProgram:
        """Return the program of a function of one batch. It returns a number, which is there when it has ended."""

        def counted(batch: Any) -> tf.Tensor:
            function(batch)
            return tf.constant(1)

        return self.compile(counted, [batches.element_spec], variables)

    def on_batches(self, function: Callable[[Any], None]) -> Callable[[Any, int], None]:
        programs: list[CompiledProgram] = []

        def run(batches: Any, count: int) -> None:
            if not programs:
                programs.append(self.compile_for_batches(function, batches))
                self.prepare(*programs)
            self.run_on_batches(programs[0], batches, count)

        return run

    def run_on_batches(self, program: CompiledProgram, batches: Any, count: int) -> None:
        """Run a program on each of the next `count` batches. At most two are computed or waited for at a time."""
        if self._feed is None or self._feed.batches is not batches:
            self._feed = Feed(batches, self._device)
        before = None
        with memory_errors():
            for _ in range(count):
                made = program(self._feed.take())
                self._feed.look_ahead()
                if before is not None:
                    before.block_until_ready()
                before = made

    @property
    def on_cpu(self) -> bool:
        return bool(self._device.platform == "cpu")

    def prepare_call(self, function: Callable[[], Any]) -> Callable[[], None]:
        program = self.compile(function)
        self.prepare(program)
        return lambda: jax.block_until_ready(program([]))

    def wait(self) -> None:
        with memory_errors():
            self._state.wait()

    def mark_temporary(self, variables: Iterable[tf.Variable]) -> None:
        self._state.mark_temporary(variables)

    def publish(self, variables: Iterable[tf.Variable] | None = None) -> None:
        self._state.publish(variables)

    def reload(self, variables: Iterable[tf.Variable] | None = None) -> None:
        self._state.reload(variables)

    def count_bytes(self) -> tuple[int, int]:
        stats = self._device.memory_stats()
        return self._state.bytes, stats["peak_bytes_in_use"] if stats else self._planned_bytes

    @property
    def _planned_bytes(self) -> int:
        """The state, and what the largest program takes beside it."""
        return self._state.bytes + max((program.temporary_bytes for program in self._programs), default=0)
