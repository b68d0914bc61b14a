"""Fingerprints, which a continued run compares: another content has another one."""

from __future__ import annotations

from shutil import copy
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.config.registries import register_data
from accumtrain.data.config import NpzConfig
from accumtrain.data.open_data import open_data
from accumtrain.data.source import ArraySplit, Source, hash_texts
from accumtrain.data.sources.config import SOURCES
from tests.data.conftest import write_records


def changed(before: Any, after: Any) -> list[str]:
    """Return the keys whose values differ."""
    assert before.keys() == after.keys()
    return [key for key in before if before[key] != after[key]]


def test_the_parts_of_a_digest_are_apart():
    assert hash_texts(["ab", "c"]) != hash_texts(["a", "bc"]) != hash_texts(["abc"]) != hash_texts([])


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        (lambda root: (root / "ant").rename(root / "cat"), {"data.classes", "data.train.files", "data.test.files"}),
        (lambda root: (root / "bee" / "00.png").unlink(), {"data.train.examples", "data.train.files"}),
        (lambda root: copy(root / "bee/00.png", root / "bee/new.png"), {"data.train.examples", "data.train.files"}),
        (lambda root: (root / "bee" / "00.png").rename(root / "ant" / "moved.png"), {"data.train.files"}),
        (lambda root: (root / "bee" / "00.png").rename(root / "bee" / "zz.png"), {"data.train.files"}),
    ],
    ids=["a class renamed, so labels swap", "deleted", "added", "moved", "renamed, so the order changes"],
)
def test_a_changed_folder(make_folder, folder_config, change, keys):
    root = make_folder(count=10)
    before = open_data(folder_config(root), seed=0).fingerprint
    assert before["data.classes"] == ["ant", "bee"]
    change(root)
    assert keys <= set(changed(before, open_data(folder_config(root), seed=0).fingerprint))


def test_other_shards(shards, tfrecord_config):
    before = open_data(tfrecord_config(), seed=0).fingerprint
    shards[0].rename(shards[0].with_name("train-5"))  # the order changes
    again = open_data(tfrecord_config(), seed=0).fingerprint
    assert changed(before, again) == ["data.train.shards"]
    write_records(shards[1], next(iter(tf.data.TFRecordDataset(str(shards[2])))).numpy())
    more = open_data(tfrecord_config(), seed=0).fingerprint
    assert changed(again, more) == ["data.train.examples", "data.train.shards"]


def test_another_slice_of_a_prepared_data_set(prepare_tfds):
    before = open_data(prepare_tfds("tfrecord", train_split="train[:10]"), seed=0).fingerprint
    assert before["data.version"] == "tiny_pictures/1.0.0"
    assert before["data.classes"] == 3, "its classes have no names"
    after = open_data(prepare_tfds("tfrecord", train_split="train[5:15]"), seed=0).fingerprint
    assert changed(before, after) == ["data.train.shards"]


@pytest.mark.parametrize("name", ["images", "labels"])
def test_another_value_in_an_array(tmp_path, name):
    arrays = {"images": np.full([8, 4, 4], 9, np.uint8), "labels": np.arange(8) % 2}
    config = NpzConfig(path=str(tmp_path / "mine.npz"))
    np.savez(config.path, **arrays)
    before = open_data(config, seed=0).fingerprint
    np.savez(config.path, **arrays, other=np.ones(3))
    assert open_data(config, seed=0).fingerprint == before
    arrays[name].ravel()[:4] ^= 1
    np.savez(config.path, **arrays)
    assert changed(before, open_data(config, seed=0).fingerprint) == ["data.arrays"]


def test_a_source_of_ones_own_may_have_none(monkeypatch):
    monkeypatch.setattr(SOURCES, "entries", dict(SOURCES.entries))
    split = ArraySplit(np.zeros([4, 2, 2, 1]), np.arange(4) % 2)
    register_data("plain", lambda config, seed: Source(split, split, 2))
    config = SOURCES["plain"].config()
    expected = {"data.classes": 2, "data.train.examples": 4, "data.test.examples": 4}
    assert open_data(config, seed=0).fingerprint == expected
