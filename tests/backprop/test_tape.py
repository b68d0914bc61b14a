"""The segment tape: reversed and recomputed gradients are the bits of plain back-propagation."""

import os
import subprocess
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.models.build import build_model
from accumtrain.models.layers import ModelSpec
from accumtrain.process.environment import ONEDNN
from tests.engine.small import CLASSES, bottleneck_revnet, examples, gradients_of_micro_batch, lenet, resnet20, revnet38

CASES = {
    "revnet38": (revnet38(), (16, 16, 3)),
    "revnet18-group": (revnet38("group", units=(2, 2)), (8, 8, 3)),
    "bottleneck": (bottleneck_revnet(), (64, 64, 3)),
    "resnet20": (resnet20(), (16, 16, 3)),
    "lenet5": (lenet(), (16, 16, 1)),
}


@cache
def gradients(name, precision, **changes):
    config, shape = CASES[name]
    return gradients_of_micro_batch(replace(config, **changes), precision, shape)


def assert_same_bits(stored, other):
    for kind, expected, actual in zip(("loss", "gradient", "statistics"), stored, other, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(expected, actual, strict=True)), kind


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("name", "memory"),
    [
        pytest.param("revnet38", "reverse", marks=pytest.mark.slow),
        pytest.param("revnet38", "recompute", marks=pytest.mark.slow),
        pytest.param("revnet18-group", "reverse", marks=pytest.mark.slow),
        ("bottleneck", "reverse"),
        ("bottleneck", "recompute"),
        ("resnet20", "recompute"),
        ("lenet5", "recompute"),
    ],
)
def test_gradient_is_bitwise_that_of_stored_activations(name, memory, precision):
    stored = gradients(name, precision, memory="store")
    assert_same_bits(stored, gradients(name, precision, memory=memory))
    assert all(np.any(gradient) for gradient in stored[1]), "every variable has a gradient to compare"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "said", "convolutions"),
    [
        ({ONEDNN: "0"}, "", False),
        ({ONEDNN: "1"}, "", True),
        ({ONEDNN: "1", "ONEDNN_MAX_CPU_ISA": "AVX2"}, "isa:Intel AVX2\n", True),
    ],
    ids=["TensorFlow's own", "oneDNN's", "oneDNN's for AVX2"],
)
def test_the_bits_are_equal_with_each_kind_of_kernels(variables, said, convolutions):
    """A process settles its kernels when it imports TensorFlow."""
    name = test_gradient_is_bitwise_that_of_stored_activations.__name__
    cases = [f"{__file__}::{name}[bottleneck-{memory}-float32]" for memory in ("reverse", "recompute")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", *cases],  # oneDNN says on stdout what it executes
        env={**os.environ, **variables, "ONEDNN_VERBOSE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "2 passed" in done.stdout
    assert said in done.stdout
    assert (",exec,cpu,convolution," in done.stdout) == convolutions


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "memory"),
    [
        pytest.param("revnet38", "reverse", marks=pytest.mark.slow),
        pytest.param("revnet38", "recompute", marks=pytest.mark.slow),
        ("bottleneck", "reverse"),
        ("resnet20", "recompute"),
    ],
)
def test_convolutions_that_are_kept_change_no_bit(name, memory, precision):
    most = CASES[name][0].most_kept_convs
    for count in (1, most // 2, most):
        kept = gradients(name, precision, memory=memory, kept_convs=count)
        assert_same_bits(gradients(name, precision, memory="store"), kept)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("config", [revnet38(units=(9, 9, 9)), bottleneck_revnet()], ids=["revnet110", "bottleneck"])
def test_reconstruction_error_is_zero(config, precision):
    shape = (16, 16, 3) if config.stem == "cifar" else (64, 64, 3)
    model = build_model(config, ModelSpec(shape, CLASSES, precision, seed=1))
    mode = Mode(training=True, recording=True)
    x = tf.cast(examples(4, shape)["inputs"], model.compute_dtype)
    stem, *stages, _ = model.segments
    streams = stem(x, mode)
    for stage in stages:
        inputs = [streams]
        for unit in stage.units:
            streams = unit(streams, mode)
            inputs.append(streams)
        y, d_y = inputs.pop(), tuple(map(tf.ones_like, streams))
        for unit, original in zip(reversed(stage.units), reversed(inputs), strict=True):
            kept = None if unit.invertible else original
            y, d_y = unit.reverse(kept, y, d_y, mode, lambda *_: [])
            for stream, expected in zip(y, original, strict=True):
                assert np.asarray(stream).tobytes() == np.asarray(expected).tobytes()


def test_without_the_grid_reconstruction_loses_bits():
    """The test above can fail: it does when nothing is snapped."""
    config = replace(revnet38(units=(2, 1)), snap_bits=0)
    stored, reversed_ = (
        gradients_of_micro_batch(replace(config, memory=memory), "float32", (16, 16, 3))[1]
        for memory in ("store", "reverse")
    )
    assert not all(np.array_equal(a, b) for a, b in zip(stored, reversed_, strict=True))


def test_replayed_statistics_are_not_recorded_again():
    mode = Mode(training=True, recording=True)
    layer = object()
    mode.record(layer, tf.zeros([1]), tf.ones([1]))
    with pytest.raises(ValueError, match="twice"):
        mode.record(layer, tf.zeros([1]), tf.ones([1]))
    assert not mode.replay().recording
