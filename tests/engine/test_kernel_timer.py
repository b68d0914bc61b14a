"""The kernels of a micro-step, timed one by one."""

from __future__ import annotations

import time
from collections import Counter

import pytest
import tensorflow as tf

from accumtrain.engine import kernel_timer
from accumtrain.engine.kernel_timer import seconds_of_kernels


@pytest.fixture
def calls(monkeypatch):
    """The results of all calls. The first timing of each call takes a second, all others two."""
    made, timed = [], Counter()

    def seconds(call):
        made.append(call())
        timed[call] += 1
        return 1.0 if timed[call] == 1 else 2.0

    monkeypatch.setattr(kernel_timer, "_seconds", seconds)
    return made


def traced(function, *shapes):
    return tf.function(function).get_concrete_function(*(tf.TensorSpec(shape) for shape in shapes)).graph


def step(x, kernel):
    """Two equal convolutions, one with another stride, a normalisation, a product, and what is not timed."""
    with tf.GradientTape() as tape:
        tape.watch([x, kernel])
        y = tf.nn.conv2d(tf.nn.conv2d(x, kernel, 1, "SAME"), kernel, 1, "SAME")
        y = tf.nn.conv2d(y, kernel, 2, "SAME")
        y, *_ = tf.compat.v1.nn.fused_batch_norm(tf.nn.relu(y), tf.ones(4), tf.zeros(4))
        y = tf.reshape(y, [-1, 4 * 4 * 4]) @ tf.ones([64, 3])
    return tape.gradient(y, [x, kernel])


def test_equal_operations_are_timed_once_and_counted(calls):
    # convolutions, the gradients of their inputs and of their kernels, norm and product with their gradients
    assert seconds_of_kernels(traced(step, (None, 8, 8, 4), (3, 3, 4, 4)), batch=2) == 3 + 3 + 3 + 2 + 2
    assert len(calls) == kernel_timer.MOST_ROUNDS * (2 + 2 + 2 + 2 + 2)


def test_an_open_batch_is_filled_in(calls):
    seconds_of_kernels(traced(lambda x, k: tf.nn.conv2d(x, k, 2, "SAME"), (None, 8, 8, 4), (3, 3, 4, 6)), batch=5)
    assert calls[0].shape == (5, 4, 4, 6)


def test_functions_that_are_called_are_looked_into(calls):
    inner = tf.function(lambda x: x @ tf.eye(3))
    graph = traced(lambda x: tf.while_loop(lambda x: tf.reduce_sum(x) < 1.0, lambda x: (inner(x),), [x]), (2, 3))
    assert seconds_of_kernels(graph, batch=1) == 1
    assert calls[0].shape == (2, 3)


def test_a_call_takes_time():
    started = time.perf_counter()
    found = seconds_of_kernels(traced(lambda x: x @ x, (64, 64)), batch=1)
    assert 0 < found < time.perf_counter() - started


def test_a_call_is_timed():
    assert kernel_timer._seconds(lambda: time.sleep(0.05)) >= 0.05


def test_rounds_end_after_some_time_but_not_before_the_second(calls, monkeypatch):
    monkeypatch.setattr(kernel_timer, "SECONDS", -1.0)
    seconds_of_kernels(traced(lambda x: x @ tf.eye(3), (2, 3)), batch=1)
    assert len(calls) == 2
