"""Adaptive clipping, functions that a graph holds once for each shape, and an optimizer written with public names."""

import numpy as np
import pytest
import tensorflow as tf

import accumtrain
from accumtrain.optim.keras_optimizer import KerasOptimizer
from accumtrain.optim.optimizer import PerShapeFunction, clip_by_weight

SHARE = 0.25  # the same number in float32


@pytest.mark.parametrize("size", [0.0, 1e-6, 1e-3, 1.0, 100.0])
@pytest.mark.parametrize("shape", [(1,), (5,), (4, 6), (3, 3, 2, 5)])
def test_a_units_gradient_is_at_most_a_share_of_its_weights(shape, size):
    draw = np.random.default_rng(0)
    weight, gradient = draw.normal(size=shape), size * draw.normal(size=shape)
    weight[..., :1] *= 1e-9  # a unit, or a value of the only one, of next to nothing
    found = clip_by_weight(tf.constant(gradient), tf.Variable(weight), tf.constant(SHARE))
    expected = gradient.copy()
    units = [slice(None)] if len(shape) == 1 else [(..., unit) for unit in range(shape[-1])]
    for unit in units:
        most = SHARE * max(np.linalg.norm(weight[unit].ravel()), 1e-3)
        norm = np.linalg.norm(gradient[unit].ravel())
        expected[unit] *= most / norm if norm > most else 1.0
    assert found.dtype == tf.float64
    np.testing.assert_allclose(found, expected, rtol=1e-13)


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


class Lion(accumtrain.Optimizer):
    """Lion (Chen et al. 2023, arXiv:2302.06675), by the public methods alone."""

    decoupled_decay = True

    def __init__(self, learning_rate=1e-4, *, weight_decay=0.0, beta1=0.9, beta2=0.99):
        super().__init__(learning_rate, weight_decay)
        self._beta1, self._beta2 = beta1, beta2

    def build_slots(self):
        self.momenta = [accumtrain.zeros_slot(parameter, "momentum") for parameter in self.parameters]

    def slots_of(self, index):
        return {"momentum": self.momenta[index]}

    def step_scalars(self, rate, t):
        return rate

    def update_variable(self, weight, slots, gradient, rate):
        momentum = slots["momentum"].read()
        weight.assign_sub(rate * tf.sign(self._beta1 * momentum + (1 - self._beta1) * gradient))
        slots["momentum"].assign(self._beta2 * momentum + (1 - self._beta2) * gradient)


def test_an_optimizer_of_a_program_is_that_of_keras():
    draw, updates = np.random.default_rng(0), 4
    start, *gradients = draw.normal(size=(1 + updates, 3, 4)).astype(np.float32)
    weights = []
    for optimizer in (Lion(0.1, weight_decay=0.2), KerasOptimizer(0.1, name="Lion", weight_decay=0.2)):
        weight = tf.Variable(start)
        optimizer.build([weight], [True])
        for step, gradient in enumerate(gradients):
            optimizer.apply([tf.constant(gradient)], tf.constant(0.1), tf.constant(step, tf.int64))
        weights.append(weight.numpy())
        assert [variable.shape for variable in optimizer.state] == [(3, 4)]
    np.testing.assert_allclose(*weights, rtol=1e-6)
