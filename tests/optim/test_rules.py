"""SGD, with momentum as in TensorFlow 1 and PyTorch, Adam and AdamW against float64 NumPy writings of them."""

import ast
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.measure.verify import references
from accumtrain.train.build import build_optimizer
from tests.optim.references import all_by_rule, assert_same_path, train

ADAM = [{}, {"weight_decay": 0.0}, {"beta1": 0.0, "epsilon": 1e-3}, {"beta1": 5e-4}]
SGD = [
    {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
    for (momentum, nesterov), weight_decay in product([(0.0, False), (0.9, False), (0.9, True)], [0.0, 0.1])
]


@pytest.mark.parametrize(("dtype", "rtol"), [(tf.float32, 1e-5), (tf.float64, 1e-12)])
@pytest.mark.parametrize(("kind", "changes"), [*product(["adam", "adamw"], ADAM), *product(["sgd"], SGD)])
def test_agrees_with_the_definition(configs, weights, gradients, rates, dtype, rtol, kind, changes):
    config = replace(configs[kind], **changes)
    optimizer, expected = build_optimizer(config), all_by_rule(config, weights, gradients, rates)
    assert_same_path(train(optimizer, weights, gradients, dtype), expected, weights, rtol)
    assert bool(optimizer.state) == (kind != "sgd" or config.momentum > 0), "SGD without momentum has no state"


def test_a_constant_gradient_moves_by_the_rate_from_the_first_update_on(configs):
    """Bias-corrected, m_hat / sqrt(v_hat) is the sign: 1 - beta2^t must not lose digits in float32."""
    config = replace(configs["adam"], weight_decay=0.0, beta2=0.9999, epsilon=1e-12)
    gradient = np.array([1e-4, -3.0, 2e3])
    (after,) = train(build_optimizer(config), [np.zeros(3)], [[gradient]] * 5)
    np.testing.assert_allclose(after, -5e-2 * np.sign(gradient), rtol=2e-6)


def test_the_rules_that_updates_are_compared_with_share_no_code_with_them():
    """They read the keys of the configurations, and nothing else of optimizers and schedules."""
    tree = ast.parse(Path(references.__file__).read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    whole = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    modules = {node.module for node in imports} | {*whole}
    assert not any(module.startswith("tensorflow") for module in modules)
    names = [alias.name for node in imports if node.module.startswith("accumtrain.") for alias in node.names]
    assert names
    assert all(name.endswith("Config") for name in names)
