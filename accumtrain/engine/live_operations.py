"""The operations of a traced function that run, and the functions that they call."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf

CONVOLUTIONS = ("Conv2D", "DepthwiseConv2dNative")
CONVOLUTIONS_AND_GRADIENTS = tuple(
    f"{name}{suffix}" for name in CONVOLUTIONS for suffix in ("", "BackpropInput", "BackpropFilter")
)


def live_operations(graph: tf.Graph) -> list[tf.Operation]:
    """The operations that results or side effects of a function's graph depend on; the runtime prunes all others.

    Args:
        graph: the graph of a tf.function's concrete function.
    """
    waiting = [tensor.op for tensor in graph.outputs] + list(graph.control_outputs)
    live = {}
    while waiting:
        operation = waiting.pop()
        if operation.name not in live:
            live[operation.name] = operation
            waiting += [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
    return list(live.values())


def called_graphs(graph: tf.Graph, operation: tf.Operation) -> Iterator[tf.Graph]:
    """The graphs of the functions that an operation calls."""
    for attribute in operation.op_def.attr:
        value = operation.get_attr(attribute.name) if attribute.type in ("func", "list(func)") else []
        for function in value if isinstance(value, list) else [value]:
            yield graph._get_function(function.name).graph  # private, but no public function gives the shapes


def all_live_operations(graph: tf.Graph) -> Iterator[tf.Operation]:
    """As `live_operations`, with those of the functions that are called, at any depth."""
    for operation in live_operations(graph):
        yield operation
        for called in called_graphs(graph, operation):
            yield from all_live_operations(called)
