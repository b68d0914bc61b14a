"""A whole update as a program for a compiler that is elsewhere."""

import re
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.xla
jax.config.update("jax_enable_x64", True)

from accumtrain.backprop import replay  # noqa: E402
from accumtrain.measure.tpu.lowering import lower_update  # noqa: E402
from accumtrain.optim.config import SgdConfig  # noqa: E402
from accumtrain.pjrt.hand_over import hand_over  # noqa: E402
from tests.engine.small import bottleneck_revnet, examples, lenet, revnet38, window_for  # noqa: E402

SHAPE, MICRO_BATCH = (8, 8, 3), 4
SGD = SgdConfig(lr=0.1, weight_decay=0.0, momentum=0.9)


def micro_batch_of(shape):
    specs = {"inputs": (shape, tf.float32), "targets": ((), tf.int32), "weight": ((), tf.float32)}
    return {name: tf.TensorSpec([MICRO_BATCH, *own], dtype) for name, (own, dtype) in specs.items()}


def lowered(config, micro_steps=2, shape=SHAPE):
    """The program as JAX takes it, its text, and the operations of an update."""
    program, flops = lower_update(window_for(config, SGD, shape, micro_steps=micro_steps), micro_batch_of(shape))
    handed = hand_over(program.hlo, rounds=True)
    return handed, jax.jit(handed.call).lower(*handed.arguments).as_text(), flops


@pytest.fixture(scope="module")
def program():
    return lowered(lenet())


def test_program_takes_one_micro_batch_and_all_state_which_changes_in_place():
    window = window_for(lenet(), SGD, SHAPE, micro_steps=2)
    program, _ = lower_update(window, micro_batch_of(SHAPE))
    handed = hand_over(program.hlo, rounds=True)
    assert [given.shape for given in handed.arguments[: program.inputs]] == [(4, 8, 8, 3), (4,), (4,)]
    assert {id(value) for value in program.captured} == {id(variable) for variable in window.variables}
    assert handed.written == list(range(program.inputs, len(handed.arguments)))


def test_micro_steps_are_a_loop(program):
    _, text, flops = program
    _, longer, more = lowered(lenet(), micro_steps=6)
    assert longer.count("stablehlo.convolution") == text.count("stablehlo.convolution")
    convolutions, dense = 8 * 8 * 75 * 6 + 4 * 4 * 150 * 16, 64 * 120 + 120 * 84 + 84 * 10
    # products of an image, its gradients twice as many, but for the images' own
    products = 3 * (convolutions + dense) - 8 * 8 * 75 * 6
    assert (flops, more) == (2 * MICRO_BATCH * 2 * products, 6 * MICRO_BATCH * 2 * products)


@pytest.mark.slow
def test_replays_are_held_back_by_barriers():
    def barriers(memory):
        return lowered(revnet38(memory=memory, units=(2, 1)))[1].count("stablehlo.optimization_barrier")

    assert barriers("reverse") > barriers("store")


def test_a_stream_is_kept_as_floats_only():
    """Readers of a stream take it from behind a barrier. Else the program would hold its integers, too."""
    text = lowered(revnet38(memory="reverse", units=(2, 1)))[1]
    parts = re.split(r"func\.func|^ {4}\}$", text, flags=re.MULTILINE)  # names are those of a function, or of a loop
    stream_made = re.compile(r"(%\w+) = stablehlo\.bitcast_convert %\w+ : \(tensor<\w+xi32>\) -> tensor<\w+xf32>")
    readers = [
        line
        for part in parts
        for stream in stream_made.findall(part)
        for line in re.findall(rf"^.* = .*{stream}\b.*$", part, re.MULTILINE)
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


@pytest.mark.slow
def test_another_process_makes_the_update_of_a_window_in_place():
    """With the same micro-batch twice, on this CPU."""
    window, expected = (window_for(lenet(), SGD, SHAPE, micro_steps=2) for _ in range(2))
    program, _ = lower_update(window, micro_batch_of(SHAPE))
    written = hand_over(program.hlo, rounds=False).serialize()
    update = jax.jit(jax.export.deserialize(bytearray(written)).call, donate_argnums=0)
    batch = examples(MICRO_BATCH, SHAPE)
    state = [jax.numpy.array(value) for value in program.captured]
    after, scalars = update(state, [np.asarray(batch[name]) for name in ("inputs", "targets", "weight")])
    assert all(value.is_deleted() for value in state)
    scalars = dict(zip(sorted(program.outputs), scalars, strict=True))
    assert (float(scalars["examples"]), int(scalars["step"])) == (2 * MICRO_BATCH, 1)
    for _ in range(2):
        expected.accumulate(batch)
    expected.commit()
    place = {id(value): place for place, value in enumerate(program.captured)}
    for found, known in zip(window.variables_, expected.variables_, strict=True):
        np.testing.assert_allclose(after[place[id(found)]], known, rtol=1e-5, atol=1e-6)
