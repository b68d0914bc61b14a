"""MixUp and CutMix: the mixed images, the shares, and the labels."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.data.images.augment import Mix, _beta_levels

KEYS = tf.constant(np.arange(4000), tf.uint64)
ONES = {"inputs": tf.ones([4000, 6, 5, 2]), "targets": tf.fill([4000], 1), "weight": tf.ones([4000])}
ZEROS = {"inputs": tf.zeros([4000, 6, 5, 2]), "targets": tf.fill([4000], 0), "weight": tf.ones([4000])}


def mixed(mix: Mix) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in mix(KEYS, dict(ONES), dict(ZEROS)).items()}


@pytest.mark.parametrize("alpha", [0.2, 1.0, 5.0])
def test_shares_are_of_a_beta_distribution(alpha):
    levels = _beta_levels(alpha)
    assert levels.mean() == pytest.approx(0.5)
    assert levels.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=1e-3)
    np.testing.assert_allclose(_beta_levels(1.0), (np.arange(4096) + 0.5) / 4096, rtol=1e-6)


def test_mixup_is_a_weighted_mean():
    result = mixed(Mix(mixup=1.0))
    share = result["share"][:, None, None, None]
    np.testing.assert_array_equal(result["inputs"], np.broadcast_to(share, [4000, 6, 5, 2]))
    assert (result["targets"] == 1).all()
    assert (result["other_targets"] == 0).all()
    assert result["share"].mean() == pytest.approx(0.5, abs=0.02)


def test_cutmix_takes_a_rectangle_and_its_share_is_what_is_left():
    result = mixed(Mix(cutmix=1.0))
    assert set(np.unique(result["inputs"])) == {0.0, 1.0}
    np.testing.assert_allclose(result["share"], result["inputs"].mean(axis=(1, 2, 3)), rtol=1e-6)
    cut = result["inputs"][..., 0] == 0
    for mask in cut[:50]:
        rows, columns = mask.any(axis=1), mask.any(axis=0)
        np.testing.assert_array_equal(mask, rows[:, None] & columns)
        assert np.count_nonzero(np.diff(rows)) <= 2, "the rows are neighbours"


def test_with_both_each_example_draws_one():
    image = mixed(Mix(mixup=1.0, cutmix=1.0))["inputs"]
    cut = np.isin(image, [0.0, 1.0]).all(axis=(1, 2, 3))
    assert cut.mean() == pytest.approx(0.5, abs=0.04)


def test_another_example_that_cannot_be_read_has_no_part():
    for mix in (Mix(mixup=1.0), Mix(cutmix=1.0)):
        result = mix(KEYS, dict(ONES), {**ZEROS, "weight": tf.zeros([4000])})
        assert (result["share"].numpy() == 1).all()
        np.testing.assert_array_equal(result["inputs"], ONES["inputs"])
