"""What a graph is traced for, by the devices that TensorFlow lists."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tensorflow as tf

from accumtrain.backprop.tracing import is_for_xla, on_cpu


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
