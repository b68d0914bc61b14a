"""A function that is kept has names of its own: those of this process may be taken in the one that reads it."""

from __future__ import annotations

import json

import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDefLibrary

from accumtrain.engine.kept_function import as_bytes


@tf.function(autograph=False, experimental_attributes={"_noinline": True})
def inner(x):
    return x + 1.0


def test_all_definitions_and_calls_have_the_mark():
    outer = tf.function(lambda x: {"y": tf.cond(x > 0.0, lambda: inner(x), lambda: x)}, autograph=False)
    facts, _, content = as_bytes(outer.get_concrete_function(tf.TensorSpec([])), [], "0f3a").partition(b"\n")
    library = FunctionDefLibrary.FromString(content)
    defined = {each.signature.name for each in library.function}
    nodes = [node for each in library.function for node in each.node_def]
    called = {value.func.name for node in nodes for value in node.attr.values() if value.HasField("func")}
    assert called
    assert json.loads(facts)["name"] in defined - called
    assert called <= defined
    assert all(name.endswith("_0f3a") for name in defined)


def test_a_function_that_needs_something_of_this_process_is_not_kept():
    variable = tf.Variable(1.0)
    concrete = tf.function(lambda: {"y": variable + 1.0}, autograph=False).get_concrete_function()
    assert as_bytes(concrete, [], "0f3a") is None
    assert as_bytes(concrete, [variable], "0f3a") is not None
