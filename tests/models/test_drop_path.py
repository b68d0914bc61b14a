"""Stochastic depth: examples are left out as a whole, the rest is scaled, and replays leave out the same."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.mode import Mode, example_draws
from accumtrain.models.build import build_model
from accumtrain.models.layers import ModelSpec
from accumtrain.models.resnet.blocks import DropPath, drop_paths
from tests.engine.small import CLASSES, bottleneck_revnet, gradients_of_micro_batch, resnet20, revnet38


def draws(batch=8):
    return example_draws(tf.constant([7, 1]), tf.constant(0), 1, batch)


def test_rates_rise_linearly_and_none_is_none():
    assert [path.rate for path in drop_paths(0.4, 4)] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert [*drop_paths(0.0, 3)] == [None] * 3


def test_the_functions_of_a_revnet_have_one_rate_after_the_other():
    config = replace(revnet38(units=(2, 1)), drop_path=0.6)
    stages = build_model(config, ModelSpec((8, 8, 3), CLASSES)).segments[1:-1]
    units = [unit for stage in stages for unit in stage.units]
    found = [function.function.drop_path for unit in units for function in (unit.f, unit.g)]
    assert [path.rate for path in found] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert [path.number for path in found] == [*range(6)]


def test_an_example_is_left_out_as_a_whole_and_the_mean_is_kept():
    path, mode = DropPath(0.25, 3), Mode(training=True, draws=draws(batch=4000))
    y = path(tf.ones([4000, 2, 2, 3]), mode).numpy()
    assert set(np.unique(y)) == {0.0, np.float32(1 / 0.75)}
    assert (y == y[:, :1, :1, :1]).all()
    assert y.mean() == pytest.approx(1.0, abs=0.05)
    np.testing.assert_array_equal(path(tf.ones([2, 1, 1, 1]), Mode(training=False)), np.ones([2, 1, 1, 1]))
    again, backward = path.pullback(tf.ones([4000, 2, 2, 3]), mode)
    d_x, gradients = backward(tf.fill([4000, 2, 2, 3], 2.0))
    np.testing.assert_array_equal(again, y)
    np.testing.assert_array_equal(d_x, 2 * y)
    assert gradients == []


def test_a_pass_without_draws_is_refused():
    with pytest.raises(ValueError, match="draws"):
        DropPath(0.25, 3)(tf.ones([2, 1, 1, 1]), Mode(training=True))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("config", "memory", "shape"),
    [
        (revnet38(units=(2, 2)), "reverse", (8, 8, 3)),
        pytest.param(revnet38(), "recompute", (16, 16, 3), marks=pytest.mark.slow),
        pytest.param(bottleneck_revnet(), "reverse", (64, 64, 3), marks=pytest.mark.slow),
        (resnet20(units=(2, 2)), "recompute", (8, 8, 3)),
    ],
    ids=["revnet", "revnet-recompute", "bottleneck", "resnet"],
)
def test_a_replay_leaves_out_the_same(config, memory, shape, precision):
    dropping = replace(config, drop_path=0.5)
    stored, other = (
        gradients_of_micro_batch(replace(dropping, memory=policy), precision, shape, draws())
        for policy in ("store", memory)
    )
    for expected, actual in zip(stored, other, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(expected, actual, strict=True))
    (plain,), *_ = gradients_of_micro_batch(replace(config, memory=memory), precision, shape, draws())
    assert plain != other[0][0], "something was left out"


def test_norm_momentum_is_that_of_every_norm():
    model = build_model(replace(revnet38(units=(1, 1)), norm_momentum=0.99), ModelSpec((8, 8, 3), CLASSES))
    assert {norm.momentum for norm in model.norms} == {0.99}
