"""What is kept for the backward pass: convolutions of residual functions, and streams between units."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.models.build import build_model
from accumtrain.models.config import ResNetConfig, RevNetConfig
from accumtrain.models.layers import Initializer, ModelSpec
from accumtrain.models.resnet.blocks import Residual
from accumtrain.models.resnet.kept_convs import choose_kept_convs, count_without_cost, kept_convs_of, list_by_worth
from tests.engine.small import CLASSES, bottleneck_revnet, examples

REVNET104 = RevNetConfig(units=[2, 2, 11, 2], filters=[128, 128, 256, 512, 832], bottleneck=True, stem="imagenet")
RESNET50 = ResNetConfig(units=[3, 4, 6, 3], filters=[64, 64, 128, 256, 512], bottleneck=True, stem="imagenet")
SMALL_REVNET = RevNetConfig(units=[1, 2], filters=[8, 8, 16], norm="group")


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        (REVNET104, 26),
        (replace(REVNET104, units=[2, 2, 44, 2]), 26),
        (RevNetConfig(), 6),  # RevNet-38
        (RevNetConfig(units=[1], filters=[16, 16]), 0),
    ],
    ids=["revnet104", "deeper", "revnet38", "one stage"],
)
def test_a_reversed_network_keeps_at_most_one_and_a_half_streams_of_the_first_stage(config, kept):
    places, stream = list_by_worth(config), config.stream_widths[1]
    assert count_without_cost(places, stream) == kept == len(choose_kept_convs(config))
    assert sum(place.values for place in places[:kept]) <= 1.5 * stream
    assert all(place.stage > 0 for place in places[:kept])


@pytest.mark.parametrize(
    ("config", "most"), [(REVNET104, 94), (RESNET50, 32), (RevNetConfig(), 32), (ResNetConfig(), 9)]
)
def test_each_convolution_that_is_asked_for_has_one_place_and_those_that_spare_most_come_first(config, most):
    """Nothing asks for the last convolution's output where it is only added, or where the unit's input is kept."""
    places = list_by_worth(config)
    assert len(set(places)) == len(places) == config.most_kept_convs == most
    assert [place.spared for place in places] == sorted((place.spared for place in places), reverse=True)
    assert all(place.conv < config.convs_to_keep(place.stage, place.unit) for place in places)


def test_of_equal_ones_the_last_units_come_first():
    first = list_by_worth(REVNET104)[:26]
    assert {(place.stage, place.conv) for place in first} == {(3, 1), (2, 1)}  # 3x3 convolutions
    assert [(place.stage, place.unit, place.function) for place in first[:3]] == [(3, 1, 1), (3, 1, 0), (3, 0, 1)]


@pytest.mark.parametrize("config", [REVNET104, RESNET50, RevNetConfig(), ResNetConfig()])
def test_multiplications_and_values_are_those_of_the_model(config):
    """Against the kernels of the model that is built."""
    config = replace(config, norm="group", kept_convs=config.most_kept_convs)
    config = replace(config, memory=config.policies[-1])
    with tf.device("CPU"):
        model = build_model(config, ModelSpec((32, 32, 3), 10, seed=1))
    residuals = [each for each in model.submodules if isinstance(each, Residual)]
    kernels = [residual.convs[conv].kernel.shape for residual in residuals for conv in residual.kept_convs]
    built = sorted((int(height * width * inputs), int(outputs)) for height, width, inputs, outputs in kernels)
    assert built == sorted((place.spared, round(place.values * 4**place.stage)) for place in list_by_worth(config))


def test_the_first_function_of_a_stage_reads_streams_of_the_stage_before():
    """Half as wide, so its first convolution spares half as much."""
    widths = REVNET104.stream_widths[1:]
    first = [place for place in list_by_worth(REVNET104) if place.stage > 0 and place.conv == 0]
    entries = [place for place in first if (place.unit, place.function) == (0, 0)]
    assert sorted((place.stage, place.spared) for place in entries) == [*enumerate(widths[:-1], 1)]
    assert all(place.spared == widths[place.stage] for place in first if place not in entries)


@pytest.mark.parametrize(("bottleneck", "kept"), [(False, {0}), (True, {1}), (True, {0, 1, 2})])
def test_what_is_kept_in_the_recorded_pass_is_used_in_the_replay(bottleneck, kept):
    residual = Residual(Initializer(1), "group", 8, 8, bottleneck=bottleneck, kept_convs=kept)
    x = tf.random.stateless_normal([2, 6, 6, 8], [1, 2])
    mode = Mode(training=True, recording=True)
    y, _ = residual.pullback(x, mode)
    assert list(mode.saved) == [residual.convs[conv] for conv in sorted(kept)]
    tf.debugging.assert_equal(residual.pullback(x, mode.replay())[0], y)
    mode.saved[residual.convs[max(kept)]] += 1.0
    assert not bool(tf.reduce_all(residual.pullback(x, mode.replay())[0] == y))


def test_a_unit_is_told_what_it_keeps():
    config = replace(SMALL_REVNET, kept_convs=1)
    (place,) = choose_kept_convs(config)
    assert kept_convs_of({place}, place.stage, place.unit, place.function) == {place.conv}
    assert kept_convs_of({place}, 0, 0, 0) == set()
    assert choose_kept_convs(replace(config, memory="store", kept_convs=None)) == set()
    assert choose_kept_convs(replace(config, memory="recompute", kept_convs=None)) == set()


def bits(stream):
    return np.asarray(stream).tobytes()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_first_unit_of_a_later_stage_keeps_in_bfloat16_what_it_reads(precision):
    config = replace(bottleneck_revnet(), memory="recompute")
    model = build_model(config, ModelSpec((64, 64, 3), CLASSES, precision, seed=1))
    streams = model.segments[0](model.cast(examples(2, (64, 64, 3))["inputs"]), Mode(training=True))
    in_full = []
    for segment in model.segments[1:-1]:
        mode = Mode(training=True, recording=True)
        y, backward = segment.forward(streams, mode, lambda _: [])
        again, _ = backward(y, tuple(map(tf.ones_like, y)))
        in_full.append(all(bits(a) == bits(b) for a, b in zip(streams, again, strict=True)))
        streams = y
    assert in_full == [True, precision == "float32"], "what comes back is what the first unit of each stage has kept"
