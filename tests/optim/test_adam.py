"""Adam and AdamW against float64 NumPy writings of the papers' algorithms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.train.build import build_optimizer
from tests.optim.references import by_rule


@pytest.mark.parametrize(("dtype", "rtol"), [(tf.float32, 1e-5), (tf.float64, 1e-12)])
@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("changes", [{}, {"weight_decay": 0.0}, {"beta1": 0.0, "epsilon": 1e-3}, {"beta1": 5e-4}])
def test_agrees_with_the_paper(
    configs, weights, gradients, rates, train, assert_same_path, dtype, rtol, decoupled, changes
):
    config = replace(configs["adamw" if decoupled else "adam"], **changes)
    optimizer = build_optimizer(config)
    series = list(zip(*gradients, strict=True))
    expected = [by_rule(config, w, list(g), rates) for w, g in zip(weights, series, strict=True)]
    assert_same_path(train(optimizer, weights, gradients, dtype), expected, weights, rtol)


def test_a_constant_gradient_moves_by_the_rate_from_the_first_update_on(configs, train):
    """Bias-corrected, m_hat / sqrt(v_hat) is the sign: 1 - beta2^t must not lose digits in float32."""
    config = replace(configs["adam"], weight_decay=0.0, beta2=0.9999, epsilon=1e-12)
    gradient = np.array([1e-4, -3.0, 2e3])
    (after,) = train(build_optimizer(config), [np.zeros(3)], [[gradient]] * 5)
    np.testing.assert_allclose(after, -5e-2 * np.sign(gradient), rtol=2e-6)
