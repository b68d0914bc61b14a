"""The validation split: a share of the training examples, the same for every seed, and none of them is trained on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from accumtrain.data.config import DigitsConfig, NpzConfig, SyntheticConfig
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_train_batches
from accumtrain.data.source import Dataset
from accumtrain.errors import ConfigError
from tests.data.conftest import assert_refused, read_pictures

IMAGES = np.arange(40, dtype=np.uint8)[:, None, None, None] * np.ones([1, 2, 2, 1], np.uint8)  # image i has pixels i
LABELS = np.arange(40) % 4
PLAIN: dict[str, Any] = {"mean": [0.0], "std": [1.0]}


def numbers(data: Dataset, split: str) -> list[int]:
    return list(read_pictures(data, split))


@pytest.fixture
def mine(tmp_path):
    def save(arrays=None, **keys):
        np.savez(tmp_path / "mine.npz", images=IMAGES, labels=LABELS, **(arrays or {}))
        return NpzConfig(path=str(tmp_path / "mine.npz"), **{**PLAIN, **keys})

    return save


def test_every_example_is_in_one_split(mine):
    data = open_data(mine(val_fraction=0.25), seed=0)
    found = {split: numbers(data, split) for split in data.splits}
    assert sorted(number for split in found.values() for number in split) == list(range(40))
    assert np.bincount(LABELS[found["val"]]).tolist() == [2, 2, 2, 2]  # 0.25 of the 8 of each class
    assert {split: numbers(open_data(mine(val_fraction=0.25), seed=9), split) for split in found} == found


def test_the_stream_has_no_validation_example(mine):
    data = open_data(mine(val_fraction=0.25), seed=0)
    stream = make_train_batches(data, batch=8, first=0, seed=3).take(9)  # three epochs of 24
    seen = np.rint(np.concatenate([batch["inputs"].numpy() for batch in stream])[:, 0, 0, 0] * 255).astype(int)
    assert np.bincount(seen, minlength=40)[numbers(data, "train")].tolist() == [3] * 24
    assert len(seen) == 72


def test_own_images_have_one_and_known_protocols_none(mine):
    data = open_data(mine(), seed=0)
    assert (data.evaluated_split, len(numbers(data, "val"))) == ("val", 4)  # round(0.1 * 8) of each class
    assert data.notes == ["4 training examples are held out to validate on (data.val_fraction=0.1)"]
    assert data.facts.startswith("28 training, 4 validation and 8 test images")
    assert open_data(DigitsConfig(), seed=0).sizes == "1,295 training, 142 validation and 360 test"
    assert open_data(DigitsConfig(val_fraction=0), seed=0).evaluated_split == "test"
    assert open_data(mine(val_fraction=0), seed=0).evaluated_split == "test"


def test_a_generated_source_whose_labels_are_not_known():
    config = SyntheticConfig(image_size=4, train_examples=50, test_examples=5, val_fraction=0.3)
    data = open_data(config, seed=0)
    assert (data.train.size, data.splits["val"].size, data.splits["test"].size) == (35, 15, 5)


def test_a_split_of_its_own_is_taken(mine):
    own = {"val_images": IMAGES[:3], "val_labels": LABELS[:3]}
    data = open_data(mine(own), seed=0)
    assert numbers(data, "val") == [0, 1, 2]
    assert len(numbers(data, "train")) == 40
    assert "test" not in data.splits
    with pytest.raises(ConfigError, match=r"val_fraction=0.2: the data has 3 validation examples of its own"):
        open_data(mine(own, val_fraction=0.2), seed=0)


def test_a_class_has_one_validation_example_at_least(mine):
    data = open_data(mine(val_fraction=0.01), seed=0)
    assert np.bincount(LABELS[numbers(data, "val")]).tolist() == [1, 1, 1, 1]


def test_one_example_of_each_class_is_too_few(tmp_path):
    arrays = {"images": IMAGES[:4], "labels": LABELS[:4], "test_images": IMAGES[:4], "test_labels": LABELS[:4]}
    np.savez(tmp_path / "four.npz", **arrays)
    assert_refused(NpzConfig(path=str(tmp_path / "four.npz"), **PLAIN), "no class has the two training examples")
