"""Which units at the end of a reversible network are spared a convolution of their replay."""

from __future__ import annotations

import pytest
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.kinds.models import RevNetConfig
from accumtrain.models.blocks import Residual
from accumtrain.models.build_model import build_model
from accumtrain.models.layers import Initializer
from accumtrain.models.revnet import count_stored_inner_convs
from accumtrain.models.spec import ModelSpec


@pytest.mark.parametrize(
    ("units", "widths", "bottleneck", "spared"),
    [
        ([2, 2, 11, 2], [256, 512, 1024, 1664], True, [0, 0, 11, 2]),  # RevNet-104
        ([2, 2, 44, 2], [256, 512, 1024, 1664], True, [0, 0, 11, 2]),
        ([3, 3, 3], [16, 32, 56], False, [0, 0, 3]),  # RevNet-38
        ([1], [16], False, [0]),
        ([1], [16], True, [1]),
    ],
)
def test_what_they_keep_takes_at_most_one_and_a_half_streams_of_the_first_stage(units, widths, bottleneck, spared):
    assert count_stored_inner_convs(units, widths, bottleneck) == spared
    inner = [width / 4 if bottleneck else width for width in widths]
    kept = sum(2 * count * width / 4**stage for stage, (count, width) in enumerate(zip(spared, inner, strict=True)))
    assert kept <= 1.5 * widths[0]


@pytest.mark.parametrize(("bottleneck", "place"), [(False, 0), (True, 1)])
def test_the_last_convolution_but_one_is_stored_in_the_recorded_pass_and_used_in_the_replay(bottleneck, place):
    residual = Residual(Initializer(1), "group", 8, 8, bottleneck=bottleneck, store_inner_conv=True)
    x = tf.random.stateless_normal([2, 6, 6, 8], [1, 2])
    mode = Mode(training=True, recording=True)
    y, _ = residual.pullback(x, mode)
    assert list(mode.saved) == [residual.convs[place]]
    tf.debugging.assert_equal(residual.pullback(x, mode.replay())[0], y)
    mode.saved[residual.convs[place]] += 1.0
    assert not bool(tf.reduce_all(residual.pullback(x, mode.replay())[0] == y))


def test_it_is_the_last_units_that_store():
    config = RevNetConfig(units=[1, 3], filters=[8, 8, 16], memory="reverse")
    assert count_stored_inner_convs(config.units, [4, 8], config.bottleneck) == [0, 1]
    model = build_model(config, ModelSpec((8, 8, 1), 3, seed=1))
    stores = [
        [(unit.f.function.store_inner_conv, unit.g.function.store_inner_conv) for unit in stage.units]
        for stage in model.segments[1:3]
    ]
    assert stores == [[(False, False)], [(False, False), (False, False), (True, True)]]
