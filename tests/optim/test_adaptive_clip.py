"""Adaptive clipping of each unit, against a loop over the units in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.optim.optimizer import clip_by_weight

SHARE = 0.25  # the same number in float32


@pytest.mark.parametrize("size", [0.0, 1e-6, 1e-3, 1.0, 100.0])
@pytest.mark.parametrize("shape", [(1,), (5,), (4, 6), (3, 3, 2, 5)])
def test_a_units_gradient_is_at_most_a_share_of_its_weights(shape, size):
    draw = np.random.default_rng(0)
    weight, gradient = draw.normal(size=shape), size * draw.normal(size=shape)
    weight[..., :1] *= 1e-9  # a unit, or a value of the only one, of next to nothing
    found = clip_by_weight(tf.constant(gradient), tf.Variable(weight), tf.constant(SHARE))
    expected = gradient.copy()
    units = [slice(None)] if len(shape) == 1 else [(..., unit) for unit in range(shape[-1])]
    for unit in units:
        most = SHARE * max(np.linalg.norm(weight[unit].ravel()), 1e-3)
        norm = np.linalg.norm(gradient[unit].ravel())
        expected[unit] *= most / norm if norm > most else 1.0
    assert found.dtype == tf.float64
    np.testing.assert_allclose(found, expected, rtol=1e-13)
