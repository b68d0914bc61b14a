"""Streams kept for a replay: themselves, or for XLA one tensor as wide as a TPU pads to."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.replay import save_for_backward
from accumtrain.backprop.tracing import for_xla


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
