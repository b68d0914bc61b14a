"""What a graph is traced for, by the devices that TensorFlow lists."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tensorflow as tf

from accumtrain.backprop.target import on_cpu


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
