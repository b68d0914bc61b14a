"""The settings of the graph optimizer hold for one function and leave no trace."""

from __future__ import annotations

import pytest
import tensorflow as tf

from accumtrain.engine.graph_optimizer import FUSION_ONLY, NOTHING, Compiled


@pytest.mark.parametrize("options", [FUSION_ONLY, NOTHING])
def test_settings_hold_within_and_are_undone(options):
    seen = []

    def function(x):
        seen.append(tf.config.optimizer.get_experimental_options())
        return x + 1

    before = tf.config.optimizer.get_experimental_options()
    compiled = Compiled(function, options)
    assert compiled(tf.constant(1)).numpy() == 2
    assert options.items() <= seen[0].items()
    for name, value in options.items():
        assert tf.config.optimizer.get_experimental_options().get(name, not value) == before.get(name, not value)


def test_settings_are_undone_after_an_error():
    def function(x):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Compiled(function, NOTHING)(tf.constant(1))
    assert not tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer")
