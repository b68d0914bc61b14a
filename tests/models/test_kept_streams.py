"""The streams between units that a recomputed RevNet keeps."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.models.build import build_model
from accumtrain.models.layers import ModelSpec
from tests.engine.small import CLASSES, bottleneck_revnet, examples


def bits(stream):
    return np.asarray(stream).tobytes()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_first_unit_of_a_later_stage_keeps_in_bfloat16_what_it_reads(precision):
    config = dataclasses.replace(bottleneck_revnet(), memory="recompute")
    model = build_model(config, ModelSpec((64, 64, 3), CLASSES, precision, seed=1))
    streams = model.segments[0](model.cast(examples(2, (64, 64, 3))["image"]), Mode(training=True))
    in_full = []
    for segment in model.segments[1:-1]:
        mode = Mode(training=True, recording=True)
        y, backward = segment.forward(streams, mode, lambda _: [])
        again, _ = backward(y, tuple(map(tf.ones_like, y)))
        in_full.append(all(bits(a) == bits(b) for a, b in zip(streams, again, strict=True)))
        streams = y
    assert in_full == [True, precision == "float32"], "what comes back is what the first unit of each stage has kept"
