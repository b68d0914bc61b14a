"""From a function that reads and writes variables to a program for XLA, in which they are arguments and results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from accumtrain.backprop.tracing import for_xla
from accumtrain.errors import ConfigError, first_line

UNKNOWN = re.compile(r"on XLA_\w+: (\w+) \(No registered")  # the operation in TensorFlow's message
QUOTED = "Failed getting HLO text: '"  # the beginning of a reason, whose quote ends some lines later


@dataclass(frozen=True)
class Program:
    """A lowered function. Its arguments are the inputs, in the order of tf.nest.flatten, then the captured values.

    Attributes:
        hlo: the serialized HloModuleProto.
        inputs: their number.
        captured: a variable, or a constant tensor, for each further argument.
        outputs: the structure that the function returns; its leaves are the results that are no new values.
        graph: of TensorFlow, that was lowered.
    """

    hlo: bytes
    inputs: int
    captured: list[Any]
    outputs: Any
    graph: tf.Graph


def lower(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    variables: Iterable[tf.Variable],
    *,
    asked_by: str = "device.runtime=jax",
    instead: str = "device.runtime=tensorflow",
) -> Program:
    """Trace a function for XLA and lower it.

    Args:
        inputs: nested tf.TensorSpec of each argument.
        variables: those that the function may use through their handles alone. Others are found by themselves.
        asked_by: the choice that needs XLA, for the message of the error.
        instead: the choice that does without.

    Raises:
        ConfigError: the function has an operation that XLA can't compile.
    """

    def traced(*leaves: tf.Tensor) -> Any:
        with for_xla():
            return function(*tf.nest.pack_sequence_as(inputs, leaves))

    leaves = tf.nest.flatten(inputs)
    compiled: Any = tf.function(traced, autograph=False, jit_compile=True)
    concrete = compiled.get_concrete_function(*leaves)
    try:
        hlo = compiled.experimental_get_compiler_ir(*leaves)(stage="hlo_serialized")
    except (ValueError, tf.errors.OpError) as error:
        unknown = UNKNOWN.search(str(error))
        reason = f"it has no operation {unknown[1]}" if unknown else first_line(error).removeprefix(QUOTED)
        raise ConfigError(f"{asked_by}: XLA can't compile this model: {reason}; use {instead}") from error
    known = {id(variable.handle): variable for variable in (*concrete.graph.variables, *variables)}
    captured = [known.get(id(value), value) for value in concrete.captured_inputs]
    return Program(hlo, len(leaves), captured, concrete.structured_outputs, concrete.graph)
