"""What a traced function runs: also what only a control dependency asks for, and nothing else."""

from __future__ import annotations

import tensorflow as tf

from accumtrain.measure.flops import all_live_operations, live_operations


def types(function, find):
    graph = tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec([2, 2])).graph
    return {operation.type for operation in find(graph)} - {"Placeholder", "Identity", "NoOp"}


def test_what_a_control_dependency_waits_for_is_live():
    def function(x):
        tf.sin(x)
        with tf.control_dependencies([tf.exp(x)]):
            return x + x

    assert types(function, live_operations) == {"AddV2", "Exp"}


def test_functions_are_looked_into_if_asked_for():
    @tf.function(autograph=False)
    def inner(x):
        tf.sin(x)
        return tf.exp(x)

    assert types(inner.python_function, all_live_operations) == {"Exp"}
    assert types(lambda x: inner(x) + x, live_operations) == {"AddV2", "PartitionedCall"}
    assert types(lambda x: inner(x) + x, all_live_operations) == {"AddV2", "PartitionedCall", "Exp"}
