"""SGD against a float64 NumPy writing, with momentum as TensorFlow 1 and PyTorch define it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tensorflow as tf

from accumtrain.train.build import build_optimizer
from tests.optim.references import by_rule


@pytest.mark.parametrize(("dtype", "rtol"), [(tf.float32, 1e-5), (tf.float64, 1e-12)])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_agrees_with_the_definition(
    configs, weights, gradients, rates, train, assert_same_path, dtype, rtol, momentum, nesterov, weight_decay
):
    config = replace(configs["sgd"], momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)
    series = list(zip(*gradients, strict=True))
    expected = [by_rule(config, w, list(g), rates) for w, g in zip(weights, series, strict=True)]
    assert_same_path(train(build_optimizer(config), weights, gradients, dtype), expected, weights, rtol)


def test_without_momentum_there_is_no_state(configs, weights, gradients, train):
    optimizer = build_optimizer(replace(configs["sgd"], momentum=0.0, nesterov=False))
    train(optimizer, weights, gradients[:1])
    assert optimizer.state == []
