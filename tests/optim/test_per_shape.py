"""A function of variables that a graph holds once for each shape."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from accumtrain.optim.optimizer import PerShapeFunction


def test_a_graph_holds_it_once_per_shape_and_calls_it_for_each_variable():
    def add(variables, value):
        weight = variables["weight"]
        assert weight.read().shape == weight.shape
        weight.assign_add(value * tf.ones(weight.shape, weight.dtype))

    add_to = PerShapeFunction(add)
    variables = [tf.Variable(tf.zeros(shape)) for shape in ([2, 3], [2, 3], [4])]

    @tf.function(autograph=False)
    def update(value):
        for variable in variables:
            add_to({"weight": variable}, value)

    graph = update.get_concrete_function(tf.constant(2.0)).graph
    calls = [operation.get_attr("f").name for operation in graph.get_operations() if "Call" in operation.type]
    assert len(calls) == 3
    functions = {function.signature.name: function for function in graph.as_graph_def().library.function}
    assert len(set(calls)) == 2
    assert all(functions[name].attr["_noinline"].b for name in calls)
    update(tf.constant(2.0))
    for variable in variables:
        np.testing.assert_array_equal(variable, 2.0 * np.ones(variable.shape))
