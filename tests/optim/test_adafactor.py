"""Adafactor against a float64 NumPy writing of the paper's algorithm, which does form the estimate v."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.config.check import check_config
from accumtrain.errors import ConfigError
from accumtrain.train.build import build_optimizer
from tests.optim.references import all_by_rule, assert_same_path, state_size, train

OPTIONS = {
    "paper": {"momentum": 0.0, "weight_decay": 0.0},
    "momentum": {"weight_decay": 0.0},
    "weight decay": {"momentum": 0.0},
    "unscaled, given rate": {"momentum": 0.0, "scale_parameter": False, "lr": 1e-2},
    "all": {"lr": 3e-2, "clip_threshold": 0.5, "epsilon2": 2.0, "decay_exponent": 0.7},
    "constant beta2": {"momentum": 0.0, "beta2": 0.99},
    "no clipping": {"momentum": 0.0, "clip_threshold": None, "lr": 1e-3},
}


@pytest.mark.parametrize(("dtype", "rtol"), [(tf.float32, 1e-5), (tf.float64, 1e-12)])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_agrees_with_the_paper(configs, weights, gradients, dtype, rtol, options):
    config = replace(configs["adafactor"], **options)
    rates = [(config.lr or min(1e-2, t**-0.5)) / (1 + (t - 1) // 20) for t in range(1, len(gradients) + 1)]
    expected = all_by_rule(config, weights, gradients, rates)
    assert_same_path(train(build_optimizer(config), weights, gradients, dtype), expected, weights, rtol)


def test_relative_step(configs):
    steps = [0, 1, 9_998, 9_999, 10_000, 39_999, 999_999]
    expected = [min(1e-2, (step + 1) ** -0.5) for step in steps]
    warm = [min(1e-6 * (step + 1), (step + 1) ** -0.5) for step in steps]
    for options, wanted in (
        ({}, expected),
        ({"scale_parameter": False}, [0.05 * rate for rate in expected]),
        ({"scale_parameter": False, "unscaled_relative_step": 1.0}, expected),
        ({"unscaled_relative_step": 1.0}, expected),
        ({"warmup_init": True}, warm),
        ({"warmup_init": True, "scale_parameter": False}, [0.05 * rate for rate in warm]),
    ):
        optimizer = build_optimizer(replace(configs["adafactor"], **options))
        rates = [optimizer.learning_rate(tf.constant(step, tf.int64)) for step in steps]
        assert all(rate.dtype == tf.float32 for rate in rates)
        np.testing.assert_allclose(rates, wanted, rtol=1e-6)


@pytest.mark.parametrize("jit_compile", [None, pytest.param(True, marks=pytest.mark.xla)])
@pytest.mark.parametrize("scale", [0.0, 1e-20, 1.0, 1e10, 1e18])
def test_zero_gradients_move_nothing(configs, scale, jit_compile):
    config = replace(configs["adafactor"], weight_decay=0.0)
    gradient = np.full((8, 6), scale)
    gradient[2], gradient[:, 3] = 0.0, 0.0
    (after,) = train(build_optimizer(config), [np.ones((8, 6))], [[gradient]] * 3, jit_compile=jit_compile)
    assert np.isfinite(after).all()
    assert (after[gradient == 0.0] == 1.0).all()
    if scale >= 1.0:
        assert (after[gradient > 0.0] < 1.0).all()


@pytest.mark.parametrize(
    ("shape", "options", "values"),
    [
        ((), {}, 1),
        ((64,), {}, 64),
        ((512, 1000), {}, 512 + 1000),
        ((3, 3, 128, 256), {}, 9 * (128 + 256)),  # a convolution: per position, in + out
        ((1, 1, 256, 64), {}, 256 + 64),
        ((3, 3, 64, 1), {}, 9 * 64),  # depthwise: factors would be larger than the whole
        ((7, 7, 1, 32), {}, 49 * 32),
        ((6, 4), {"min_dim_size_to_factor": 4}, 6 + 4),
        ((6, 4), {"min_dim_size_to_factor": 5}, 6 * 4),
        ((6, 1), {"min_dim_size_to_factor": 1}, 6 + 1),
        ((64, 1, 32), {"factored_axes": "largest"}, 64 + 32),
        ((3, 64, 4, 32), {"factored_axes": "largest"}, 3 * 4 * (64 + 32)),
        ((3, 64, 4, 32), {"factored_axes": "last"}, 3 * 64 * (4 + 32)),
        ((8,), {"factored_axes": "largest", "min_dim_size_to_factor": 1}, 8),
    ],
)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_which_axes_are_factored(configs, shape, options, values, momentum):
    optimizer = build_optimizer(replace(configs["adafactor"], momentum=momentum, **options))
    optimizer.build([tf.Variable(tf.zeros(shape))], [True])
    assert state_size(optimizer) == values + (int(np.prod(shape)) if momentum else 0)


def test_of_equal_axes_the_later_ones_are_factored(configs):
    optimizer = build_optimizer(replace(configs["adafactor"], factored_axes="largest", momentum=0.0))
    optimizer.build([tf.Variable(tf.zeros((3, 3, 3, 8)))], [True])
    assert [slot.shape.as_list() for slot in optimizer.state] == [[3, 3, 1, 8], [3, 3, 3, 1]]


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("factored_axes=first", "choose from last, largest"),
        ("momentum_of=gradient", "choose from change, update"),
        ("weight_decay_factor=rat", "did you mean rate"),
        ("beta2=1.0", "must be above 0 and below 1"),
        ("min_dim_size_to_factor=0", "must be at least 1"),
        ("unscaled_relative_step=0.0", "must be above 0"),
        ("warmup_init=true", "only the relative step warms up.* set optim.lr=null"),
    ],
)
def test_a_mistake_on_the_command_line_is_named(compose, override, says):
    with pytest.raises(ConfigError, match=rf"optim\.{override}: .*{says}"):
        check_config(compose("optim=adafactor", f"optim.{override}"))
