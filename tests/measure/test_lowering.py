"""A whole update as a program for a compiler that is elsewhere."""

import re
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop import replay
from accumtrain.measure.lowering import lower
from accumtrain.optim.config import SgdConfig
from tests.engine.small import bottleneck_revnet, examples, lenet, revnet38, window_for

pytestmark = pytest.mark.xla

SHAPE, MICRO_BATCH = (8, 8, 3), 4
SGD = SgdConfig(lr=0.1, weight_decay=0.0, momentum=0.9)


def lowered(config, micro_steps=2, shape=SHAPE):
    window = window_for(config, SGD, shape, micro_steps=micro_steps)
    return window, *lower(window, shape, MICRO_BATCH)


@pytest.fixture(scope="module")
def program():
    return lowered(lenet())


def test_program_takes_one_micro_batch_and_all_state_which_changes_in_place(program):
    window, text, _ = program
    (main,) = re.findall(r"func\.func (?:public )?@main\((.*?)\) ->", text)
    assert main.startswith("%arg0: tensor<4x8x8x3xf32>")
    variables = len({id(variable) for variable in window.variables})
    assert main.count("%arg") == 3 + variables
    assert text.count('kind = "may_alias"') == variables


def test_micro_steps_are_a_loop(program):
    _, text, flops = program
    _, longer, more = lowered(lenet(), micro_steps=6)
    assert longer.count("stablehlo.convolution") == text.count("stablehlo.convolution")
    convolutions, dense = 8 * 8 * 75 * 6 + 4 * 4 * 150 * 16, 64 * 120 + 120 * 84 + 84 * 10
    # products of an image, its gradients twice as many, but for the images' own
    products = 3 * (convolutions + dense) - 8 * 8 * 75 * 6
    assert (flops, more) == (2 * MICRO_BATCH * 2 * products, 6 * MICRO_BATCH * 2 * products)


def test_replays_are_held_back_by_barriers():
    def barriers(memory):
        return lowered(revnet38(memory=memory, units=(2, 1)))[1].count("stablehlo.optimization_barrier")

    assert barriers("reverse") > barriers("store")


def test_a_stream_is_kept_as_floats_only():
    """Readers of a stream take it from behind a barrier. Else the program would hold its integers, too."""
    text = lowered(revnet38(memory="reverse", units=(2, 1)))[1]
    stream_made = re.compile(r"(%\w+) = stablehlo\.bitcast_convert %\w+ : \(tensor<\w+xi32>\) -> tensor<\w+xf32>")
    readers = [
        line
        for function in text.split("func.func")  # names are those of one function
        for stream in stream_made.findall(function)
        for line in re.findall(rf"^.* = .*{stream}\b.*$", function, re.MULTILINE)
    ]
    assert len(readers) >= 2 * 2 * 3  # sums of two streams, in two and one units, forward and in reverse
    assert all("stablehlo.optimization_barrier" in line for line in readers)


@pytest.mark.parametrize(
    ("memory", "joined"),
    [
        ("reverse", True),
        pytest.param("recompute", True, marks=pytest.mark.slow),
        pytest.param("store", False, marks=pytest.mark.slow),
    ],
)
def test_streams_of_half_the_lanes_are_kept_as_one(memory, joined, monkeypatch):
    """Those of the stem, [4, 8, 8, 16] each: the unit after it can't be reversed."""
    monkeypatch.setattr(replay, "LANES", 32)
    text = lowered(replace(bottleneck_revnet(memory=memory), units=[1, 1]), shape=(32, 32, 3))[1]
    found = re.search(r"stablehlo\.concatenate .*-> tensor<4x8x8x32xf32>", text)
    assert (found is not None) == joined


def test_the_program_makes_the_update_of_a_window(monkeypatch):
    """Run here, by XLA for the CPU, on the same micro-batch twice."""
    window, expected = (window_for(lenet(), SGD, SHAPE, micro_steps=2) for _ in range(2))
    function, made = tf.function, []
    with monkeypatch.context() as patch:
        patch.setattr(tf, "function", lambda *args, **options: made.append(function(*args, **options)) or made[-1])
        lower(window, SHAPE, MICRO_BATCH)
    batch = examples(MICRO_BATCH, SHAPE)
    scalars = made[0](batch["image"], batch["label"], batch["weight"])
    assert (float(scalars["examples"]), int(scalars["step"])) == (2 * MICRO_BATCH, 1)
    for _ in range(2):
        expected.accumulate(batch)
    expected.commit()
    for found, known in zip(window.variables_, expected.variables_, strict=True):
        np.testing.assert_allclose(found, known, rtol=1e-5, atol=1e-6)
