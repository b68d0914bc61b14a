"""One number that is not finite is found among tensors of any rank and dtype, wherever it stands."""

from itertools import product

import numpy as np
import tensorflow as tf

from accumtrain.engine.sums import all_finite

SHAPES = [(), (3,), (5,), (2, 4), (2, 3, 4), (4,)]
DTYPES = [np.float32, np.float32, np.float64, np.float32, np.float64, np.float64]


def values():
    """Return large numbers. Those of 64 bits are beyond what 32 bits hold."""
    large = {np.float32: 1e30, np.float64: 1e300}
    return [np.full(shape, large[dtype], dtype) for shape, dtype in zip(SHAPES, DTYPES, strict=True)]


def test_all_are():
    assert bool(all_finite(map(tf.constant, values())))


def test_one_is_not():
    for place, bad, at in product(range(len(SHAPES)), (np.inf, -np.inf, np.nan), (0, -1)):
        found = values()
        found[place].reshape(-1)[at] = bad
        assert not bool(all_finite(map(tf.constant, found))), (place, bad, at)
