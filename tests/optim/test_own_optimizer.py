"""An optimizer of a program's own, written with public names alone."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import accumtrain
from accumtrain.optim.keras_optimizer import KerasOptimizer


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
