"""Which layer an operation of the micro-step belongs to, and whether it computes forward, again, or a gradient.

The graph has no names of layers. An operation belongs to the layer whose weights it takes, or whose gradient it gives;
else to that of what it computes with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

FORWARD, REPLAY, GRADIENT = "forward", "replay", "gradient"
Place = tuple[str, str]  # one of these, and the path of a layer
# operations that hand on what they are given
HAND_ON = ("ReadVariableOp", "Cast", "Identity", "Reshape", "Transpose")
WITH_WEIGHTS = ("Conv2D", "DepthwiseConv2dNative", "MatMul", "Einsum", "FusedBatchNormV3", "BiasAdd", "BatchMatMulV2")
INSIDE_LOOP = re.compile(r"^.*?/body/_\d+/")
WORDS = (  # of paths, which tell a user nothing
    (re.compile(r"\b(layers|function|activations?|residual)/"), ""),
    (re.compile(r"\b(segment|unit|stem|conv)s/"), r"\1 "),
)


def operation_of(name: str) -> str:
    """The name that an operation has in the graph, from the one that the profiler writes."""
    return INSIDE_LOOP.sub("", name)


def find_places(
    micro_step: Any, named: Mapping[str, tf.Variable], buffers: Mapping[str, tf.Variable]
) -> dict[str, Place]:
    """The place of each operation in the loop of a traced micro-step.

    Args:
        micro_step: the concrete function of `Step.prepare`.
        named: variables of the model by path.
        buffers: variables to which gradients are added, by the path of the variable of the model.
    """
    graph = micro_step.graph
    loop = next(op for op in graph.get_operations() if op.type in ("While", "StatelessWhile"))
    bodies = {function.signature.name: function for function in graph.as_graph_def().library.function}
    body = bodies[loop.get_attr("body").name]
    handles = {id(variable.handle): _layer(path) for path, variable in [*named.items(), *buffers.items()]}
    inner = {id(placeholder): handles.get(id(outer)) for outer, placeholder in graph.captures}
    layers = {
        argument.name: layer
        for argument, given in zip(body.signature.input_arg, loop.inputs, strict=True)
        if (layer := inner.get(id(given))) is not None
    }
    return _Walk(layers).through(body.node_def)


class _Walk:
    """Goes through the operations in the order in which they were made, so that inputs come first."""

    def __init__(self, weights: dict[str, str]):
        self._weights = dict(weights)  # what is a layer's weights, by the name of the operation that gives it
        self._places: dict[str, Place] = {}
        self._seen: set[tuple[str, str]] = set()  # layers and operations that have been computed once

    def through(self, nodes: Any) -> dict[str, Place]:
        for node in _in_order(nodes):
            inputs = [name.partition(":")[0] for name in node.input if not name.startswith("^")]
            if node.op in HAND_ON and inputs and inputs[0] in self._weights:
                self._weights[node.name] = self._weights[inputs[0]]
            elif node.op == "AssignAddVariableOp" and inputs[0] in self._weights:
                self._gives_gradient(inputs[1], self._weights[inputs[0]])
            else:
                self._places[node.name] = self._place(node, inputs)
        return self._places

    def _gives_gradient(self, name: str, layer: str) -> None:
        if name in self._places:
            self._places[name] = GRADIENT, layer

    def _place(self, node: Any, inputs: list[str]) -> Place:
        before = [self._places[name] for name in inputs if name in self._places]
        own = next((self._weights[name] for name in inputs if name in self._weights), None)
        of_tape = self._places.get(node.name.removeprefix("gradient_tape/").rpartition("/")[0])
        layer = own or (of_tape or next((place for place in before if place[1]), ("", "")))[1]
        if _is_gradient(node):
            return GRADIENT, layer
        if own is not None and node.op in WITH_WEIGHTS:
            again = (layer, node.op) in self._seen
            self._seen.add((layer, node.op))
            return (REPLAY if again else FORWARD), layer
        passes = [place[0] for place in before]
        return next((each for each in (GRADIENT, REPLAY) if each in passes), FORWARD), layer


def _is_gradient(node: Any) -> bool:
    if node.op in ("StopGradient", "PreventGradient"):
        return False
    return "Grad" in node.op or "Backprop" in node.op or "gradient_tape" in node.name


def _in_order(nodes: Any) -> list[Any]:
    """The nodes, each after its inputs."""
    by_name = {node.name: node for node in nodes}
    done: dict[str, None] = {}
    for root in by_name:
        waiting = [root]
        while waiting:
            name = waiting[-1]
            before = [each.partition(":")[0].lstrip("^") for each in by_name[name].input]
            missing = [each for each in before if each in by_name and each not in done]
            if missing:
                waiting += missing
            else:
                done[waiting.pop()] = None
    return [by_name[name] for name in done]


def _layer(path: str) -> str:
    """The layer of a variable, as the model's path without its last part."""
    return path.rpartition("/")[0]


def in_words(layer: str) -> str:
    """A layer's path without the words that tell a user nothing, such as `segment 1 unit 2 f 0`."""
    for pattern, replacement in WORDS:
        layer = pattern.sub(replacement, layer)
    return layer.replace("/", " ").strip()
