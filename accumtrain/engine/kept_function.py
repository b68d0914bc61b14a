"""A traced function as bytes, and the function that such bytes are in another process.

What is kept is what tracing made: TensorFlow's definitions of the function and of all that it calls, before the graph
optimizer. Variables are kept as their places in a list, which another process makes in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.core.framework.function_pb2 import FunctionDef, FunctionDefLibrary

# adds definitions without making Python objects of their operations, which takes as long as tracing them
from tensorflow.python.eager.context import context


class KeptFunction:
    """A function that was traced in another process. Call it outside of graphs, with what it was traced for.

    Args:
        content: what `as_bytes` returned there.
        variables: equal to the list there in order, shapes and dtypes.

    Raises:
        ValueError, KeyError, IndexError, google.protobuf.message.DecodeError: `content` is something else.
    """

    def __init__(self, content: bytes, variables: Sequence[tf.Variable]):
        header, _, library = content.partition(b"\n")
        facts = json.loads(header)
        self.name, self.outputs = facts["name"].encode(), facts["outputs"] or []
        self.captured_inputs = [variables[place].handle for place in facts["captured"]]
        for definition in FunctionDefLibrary.FromString(library).function:
            if not context().has_function(definition.signature.name):  # of an earlier run in this process
                context().add_function_def(definition)

    def __call__(self, *arguments: Any) -> Any:
        inputs = tf.nest.flatten(arguments, expand_composites=True)
        values = context().call_function(self.name, [*inputs, *self.captured_inputs], len(self.outputs))
        return dict(zip(self.outputs, values, strict=True)) if self.outputs else None


def as_bytes(concrete: Any, variables: Sequence[tf.Variable], mark: str) -> bytes | None:
    """A traced function; None if it uses tensors of this process that are no variables among `variables`.

    Args:
        concrete: it returns nothing or a dictionary of tensors.
        mark: is added to the names of all definitions, so that they are not those of functions traced in the process
            that reads them.
    """
    places = {id(variable.handle): place for place, variable in enumerate(variables)}
    captured = [places.get(id(handle)) for handle in concrete.captured_inputs]
    if None in captured:
        return None
    library = concrete.graph.as_graph_def().library
    library.function.add().CopyFrom(concrete.function_def)
    _rename(library, mark)
    outputs = concrete.structured_outputs
    facts = {
        "name": library.function[-1].signature.name,
        "captured": captured,
        "outputs": None if outputs is None else sorted(outputs),  # the order in which a function returns them
    }
    return json.dumps(facts).encode() + b"\n" + library.SerializeToString(deterministic=True)


def _rename(library: FunctionDefLibrary, mark: str) -> None:
    names = {each.signature.name: f"{each.signature.name}_{mark}" for each in library.function}
    for definition in library.function:
        definition.signature.name = names[definition.signature.name]
        for attribute in _attributes(definition):
            called = [attribute.func, *attribute.list.func] if attribute.HasField("func") else attribute.list.func
            for each in called:
                each.name = names[each.name]


def _attributes(definition: FunctionDef) -> Iterator[AttrValue]:
    yield from definition.attr.values()
    for node in definition.node_def:
        yield from node.attr.values()
