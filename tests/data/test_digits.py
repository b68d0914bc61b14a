from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

from accumtrain.data.config import DigitsConfig
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_eval_batches
from accumtrain.data.sources import builtin


def test_split_is_fixed_and_stratified():
    source = builtin.open_digits(DigitsConfig(), 0)
    train, test = source.train, source.test
    assert (train.size, test.size, test.image_shape) == (1437, 360, (8, 8, 1))
    images, labels = test.read(tf.range(360, dtype=tf.int64))
    everyone = np.bincount(train.read(tf.range(1437, dtype=tf.int64))[1]) + np.bincount(labels)
    assert np.abs(np.bincount(labels) - everyone * 360 / 1797).max() <= 1
    assert everyone.sum() == 1797
    assert images.numpy().max() == 16


def test_splits_share_no_example():
    source = builtin.open_digits(DigitsConfig(), 0)
    train, test = (
        {image.tobytes() for image in split.read(tf.range(split.size, dtype=tf.int64))[0].numpy()}
        for split in (source.train, source.test)
    )
    assert not train & test


def test_sixteen_is_one():
    data = open_data(DigitsConfig(augment="none", image_size=None, mean=[0.0], std=[1.0]), seed=0)
    image = next(iter(make_eval_batches(data, batch=360)))["image"].numpy()
    assert (image.min(), image.max()) == (0.0, 1.0)
    np.testing.assert_array_equal(np.unique(image), np.arange(17) / 16)


def test_attribution_is_shipped():
    folder = Path(builtin.__file__).with_name("digits")
    assert "CC BY 4.0" in (folder / "ATTRIBUTION.txt").read_text()
    assert (folder / "digits.npz").stat().st_size < 60_000
