"""The target of a graph, explicit order between operations, and streams kept for a replay, as wide as a TPU pads to."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.replay import save_for_backward
from accumtrain.backprop.tracing import after, computed_after, for_xla, is_for_xla, on_cpu


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


@pytest.mark.parametrize(("channels", "joined"), [(64, True), (32, False), (128, False)])
def test_two_streams_of_half_a_tpus_lanes_are_kept_as_one(channels, joined):
    spec = tf.TensorSpec([2, 3, 5, channels])

    def kept_and_back(*streams):
        x, kept = save_for_backward(streams)
        return x, kept(streams)

    plain = tf.function(kept_and_back, autograph=False).get_concrete_function(spec, spec)
    with for_xla():
        for_a_tpu = tf.function(kept_and_back, autograph=False).get_concrete_function(spec, spec)
    kinds = [{operation.type for operation in each.graph.get_operations()} for each in (plain, for_a_tpu)]
    assert ["ConcatV2" in each for each in kinds] == [False, joined]
    streams = [tf.random.stateless_normal([2, 3, 5, channels], [1, seed]) for seed in range(2)]
    for returned in plain(*streams):
        for stream, expected in zip(returned, streams, strict=True):
            np.testing.assert_array_equal(stream, expected)


@pytest.mark.parametrize(
    "tensors",
    [
        (tf.TensorSpec([2, 128]), tf.TensorSpec([])),  # and the sum of losses so far
        [tf.TensorSpec([2, 64]), tf.TensorSpec([2, 3, 64])],  # a cut point of two tensors
    ],
)
def test_what_a_part_of_a_keras_model_takes_is_kept_as_it_is(tensors):
    with for_xla():
        graph = tf.function(lambda x: save_for_backward(x)[0], autograph=False).get_concrete_function(tensors).graph
    assert "ConcatV2" not in {operation.type for operation in graph.get_operations()}
