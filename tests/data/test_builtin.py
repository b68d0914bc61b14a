"""The digits that are shipped, and examples that are generated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.data.config import DigitsConfig, SyntheticConfig
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_eval_batches
from accumtrain.data.source import Wanted
from accumtrain.data.sources import builtin
from accumtrain.errors import ConfigError, DataError
from tests.data.conftest import PLAIN

INDEX = tf.range(60, dtype=tf.int64)


def test_the_split_of_the_digits_is_fixed_and_stratified():
    source = builtin.open_digits(DigitsConfig(), Wanted())
    train, test = source.train, source.test
    assert (train.size, test.size, test.shape) == (1437, 360, (8, 8, 1))
    images, labels = test.read(tf.range(360, dtype=tf.int64))
    everyone = np.bincount(train.read(tf.range(1437, dtype=tf.int64))[1]) + np.bincount(labels)
    assert np.abs(np.bincount(labels) - everyone * 360 / 1797).max() <= 1
    assert (everyone.sum(), images.numpy().max()) == (1797, 16)


def test_their_splits_share_no_example():
    source = builtin.open_digits(DigitsConfig(), Wanted())
    train, test = (
        {image.tobytes() for image in split.read(tf.range(split.size, dtype=tf.int64))[0].numpy()}
        for split in (source.train, source.test)
    )
    assert not train & test


def test_sixteen_is_one():
    data = open_data(DigitsConfig(**PLAIN), seed=0)
    image = next(iter(make_eval_batches(data, batch=360)))["inputs"].numpy()
    assert (image.min(), image.max()) == (0.0, 1.0)
    np.testing.assert_array_equal(np.unique(image), np.arange(17) / 16)


def test_their_attribution_is_shipped():
    folder = Path(builtin.__file__).with_name("digits")
    assert "CC BY 4.0" in (folder / "ATTRIBUTION.txt").read_text()
    assert (folder / "digits.npz").stat().st_size < 60_000


def config(**changes: object) -> SyntheticConfig:
    values = {"augment": "none", "image_size": 9, "mean": [0.5], "std": [0.25], "channels": 3, "num_classes": 5}
    return SyntheticConfig(**{**values, "train_examples": 60, "test_examples": 60, **changes})


def test_a_generated_example_is_a_function_of_seed_and_index():
    images, labels = open_data(config(), seed=1).train.read(INDEX)
    again, _ = open_data(config(train_examples=1000), seed=1).train.read(INDEX[50:])
    other, _ = open_data(config(), seed=2).train.read(INDEX)
    assert images.shape == (60, 9, 9, 3)
    assert labels.numpy().tolist() == [i % 5 for i in range(60)]
    np.testing.assert_array_equal(images[50:], again)
    assert not np.array_equal(images, other)


def test_test_examples_are_new():
    data = open_data(config(), seed=1)
    both = np.concatenate([split.read(INDEX)[0] for split in (data.train, data.test)])
    assert len(np.unique(both.reshape(120, -1), axis=0)) == 120


@pytest.mark.parametrize(("size", "channels", "classes"), [(1, 1, 2), (5, 3, 1000), (32, 2, 7)])
def test_any_shape_and_class_count(size, channels, classes):
    data = open_data(config(image_size=size, channels=channels, num_classes=classes), seed=0)
    assert data.train.read(INDEX)[0].shape == (60, size, size, channels)
    assert (data.num_classes, data.shape) == (classes, (size, size, channels))


def test_classes_can_be_learned():
    data = open_data(config(), seed=3)
    (images, labels), (unseen, truth) = (split.read(INDEX) for split in (data.train, data.test))
    centres = np.stack([images.numpy()[labels.numpy() == label].mean(axis=0) for label in range(5)])
    distance = np.square(unseen.numpy()[:, None] - centres).sum(axis=(2, 3, 4))
    assert np.mean(distance.argmin(axis=1) == truth.numpy()) > 0.95


def test_their_size_must_be_given():
    with pytest.raises(ConfigError, match=r"set data.image_size"):
        open_data(config(image_size=None), seed=0)


def test_examples_that_do_not_fit_in_memory_are_not_joined():
    source = builtin.open_synthetic(config(train_examples=2**62, test_examples=2**62), Wanted())
    with pytest.raises(DataError, match=r"all examples together take .* of memory are free: give data with fewer"):
        source.train.joined_with([source.test])
