"""The target of a graph, by the devices that TensorFlow lists, and explicit order between operations."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tensorflow as tf

from accumtrain.backprop.tracing import after, computed_after, is_for_xla, on_cpu


@pytest.mark.parametrize(
    ("kinds", "answer"),
    [
        (["CPU"], True),
        (["CPU", "CPU"], True),
        (["CPU", "TPU_SYSTEM"], True),
        (["CPU", "GPU"], False),
        (["CPU", "TPU_SYSTEM", "TPU"], False),
    ],
)
def test_it_is_for_cpus_where_nothing_else_computes(kinds, answer, monkeypatch):
    devices = [SimpleNamespace(device_type=kind) for kind in kinds]
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda: devices)
    assert on_cpu() is answer


@pytest.mark.xla
@pytest.mark.parametrize("compiled", [False, True])
def test_a_function_is_for_xla_if_it_is_compiled_by_it(compiled):
    found = []

    @tf.function(jit_compile=compiled)
    def outer(x):
        inner = tf.function(lambda x: found.append(is_for_xla()) or x)
        found.append(is_for_xla())
        return inner(x)

    outer(tf.constant(1.0))
    assert found == [compiled, compiled]
    assert not is_for_xla()


def test_none_stays_none():
    one, two = tf.constant(1.0), tf.constant(2.0)
    first, second, third = after([one], (two, None, one))
    assert (float(first), second, float(third)) == (2.0, None, 1.0)
    assert after([one], [None]) == [None]


def test_nothing_waits_for_none():
    @tf.function(autograph=False)
    def run(one, two):
        with computed_after([None, one], two) as two:
            three = after([(None, one)], two) + 1.0
        return after([None], three)

    assert float(run(tf.constant(1.0), tf.constant(2.0))) == 3.0
