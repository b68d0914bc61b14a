"""Every data source: a position gives its batch, an epoch every example once, and bad input is named."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.config.schema import Config
from accumtrain.data import pipeline
from accumtrain.data.config import TextsConfig
from accumtrain.data.images.encoded import EncodedSplit
from accumtrain.data.inputs.pixels import Pixels
from accumtrain.data.inputs.tokens import Tokens
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_eval_batches, make_train_batches
from accumtrain.data.source import Dataset
from accumtrain.data.sources.config import SOURCES
from accumtrain.dispatch import run
from accumtrain.errors import ConfigError, DataError
from accumtrain.runs.config import RunConfig
from tests.contract import files
from tests.contract.examples import example_of
from tests.data.conftest import join

NEEDS_FILES = [entry.name for entry in SOURCES if {"path", "dir"} & {key.name for key in fields(entry.config)}]
CHANGES = [
    pytest.param({}, id="plain"),
    pytest.param({"image_size": [9, 7], "augment": "inception"}, id="resized and augmented", marks=pytest.mark.slow),
]
of_every_source = pytest.mark.parametrize("name", SOURCES.names)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples name their files by relative paths; caches stay out of the home directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def prepared(name: str):
    """The example of a source, with its files written."""
    if name not in files.WRITERS:
        pytest.fail(f"data={name}: add what writes the files of its example to WRITERS in {files.__file__}")
    files.WRITERS[name]()
    return example_of("data", name)


def opened(name: str, changes: dict[str, object]) -> Dataset:
    """The data of the example of a source with changes, which are others for texts."""
    config = prepared(name)
    if changes and isinstance(config, TextsConfig):
        changes = {"by_length": True}
    return open_data(replace(config, **changes), seed=0)


def stream(data: Dataset, *, batch: int, count: int, first: int = 0, seed: int = 3) -> dict[str, np.ndarray]:
    return join(make_train_batches(data, batch=batch, first=first, seed=seed).take(count))


def assert_same(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert actual.keys() == expected.keys()
    for key, value in actual.items():
        np.testing.assert_array_equal(value, expected[key], strict=True)


def identities(examples: dict[str, np.ndarray]) -> Iterator[bytes]:
    """Of each example: its pixels and its label."""
    for image, label in zip(examples["inputs"], examples["targets"], strict=True):
        yield image.tobytes() + label.tobytes()


@of_every_source
@pytest.mark.parametrize("changes", CHANGES)
def test_a_position_is_the_whole_state(name, changes):
    data = opened(name, changes)
    size = data.train.size
    whole = stream(data, batch=size, count=2)
    for first in (1, size - 3)[bool(changes) :]:  # the last goes on in the next epoch
        part = {key: value[first : first + 8] for key, value in whole.items()}
        assert_same(stream(data, batch=4, count=2, first=first), part)


@of_every_source
@pytest.mark.parametrize("changes", CHANGES)
def test_batches_are_as_described(name, changes):
    data = opened(name, changes)
    size = changes.get("image_size") if isinstance(data.inputs, Pixels) else None
    assert size is None or list(data.shape[:2]) == size
    for batches in (make_train_batches(data, batch=4, first=0, seed=0), make_eval_batches(data, batch=4)):
        assert batches.element_spec == {
            "inputs": tf.TensorSpec([4, *data.shape], tf.int32 if isinstance(data.inputs, Tokens) else tf.float32),
            "targets": tf.TensorSpec([4], tf.int32),
            "weight": tf.TensorSpec([4], tf.float32),
        }


@of_every_source
def test_an_epoch_is_a_permutation(name):
    data = open_data(prepared(name), seed=0)
    size = data.train.size
    examples = join(make_eval_batches(data, batch=size, split="train"))
    assert np.isfinite(examples["inputs"]).all()
    assert np.unique(examples["targets"]).tolist() == list(range(data.num_classes))
    stored, epochs = list(identities(examples)), stream(data, batch=size, count=2)
    assert (epochs["weight"] == 1).all()
    shown = list(identities(epochs))
    assert sorted(shown[:size]) == sorted(shown[size:]) == sorted(stored)
    assert shown[:size] != shown[size:] != stored
    assert shown[:16] != list(identities(stream(data, batch=16, count=1, seed=4))), "the seed decides the order"


@of_every_source
@pytest.mark.parametrize("split", ["train", "test"])
def test_evaluation_covers_each_example_once(name, split):
    data = open_data(prepared(name), seed=0)
    size = getattr(data, split).size
    whole, parts = (join(make_eval_batches(data, batch=batch, split=split)) for batch in (size, 4))
    assert parts["weight"].tolist() == [1.0] * size + [0.0] * (-size % 4)
    assert 0 <= parts["targets"].min() <= parts["targets"].max() < data.num_classes
    assert_same({key: value[:size] for key, value in parts.items()}, whole)


@of_every_source
def test_images_are_the_same_decoded_early_or_late(name, monkeypatch):
    config = prepared(name)
    data = open_data(config, seed=0)
    if not isinstance(data.train, EncodedSplit):
        return  # there is nothing to decode
    early = stream(data, batch=8, count=3)
    monkeypatch.setattr(pipeline, "RESIDENT_BYTES", 0)
    assert_same(stream(open_data(config, seed=0), batch=8, count=3), early)


@of_every_source
def test_the_fingerprint_is_that_of_the_content(name, tmp_path, monkeypatch):
    config = prepared(name)
    data = open_data(config, seed=0)
    expected = {"data.train.examples": data.train.size, "data.test.examples": data.test.size}
    assert expected.items() <= data.fingerprint.items()
    assert json.loads(json.dumps(data.fingerprint)) == data.fingerprint
    elsewhere = tmp_path / "other" / "place"
    elsewhere.parent.mkdir()
    shutil.copytree(tmp_path, elsewhere, ignore=lambda *_: ["other", "cache"])
    for file in elsewhere.rglob("*"):
        os.utime(file, (0, 0))
    monkeypatch.chdir(elsewhere)
    assert open_data(config, seed=0).fingerprint == data.fingerprint


@of_every_source
def test_all_of_it_is_checked(name, tmp_path):
    config = Config(job="check", data=prepared(name), run=RunConfig(dir=str(tmp_path), name="one"))
    result = run(config)
    assert json.loads((tmp_path / "trials/check-one/check.json").read_text()) == result
    assert result["status"] == "completed"
    assert result["duplicates"]["count"] == result["bad"]["count"] == 0
    data = open_data(replace(config.data, val_fraction=0.0), config.run.seed)  # all of train, with what is held out
    for split in ("train", "test"):
        labels = join(make_eval_batches(data, batch=1, split=split))["targets"]
        counts = np.bincount(labels, minlength=data.num_classes).tolist()
        assert list(result[split]["classes"].values()) == counts
        assert result[split]["examples"] == sum(counts)
        if isinstance(data.inputs, Tokens):
            shortest, longest = getattr(data, split).whole_lengths.min(), getattr(data, split).whole_lengths.max()
            assert {"min": shortest, "max": longest}.items() <= result[split]["tokens"].items()
            continue
        for side, pixels in zip(("height", "width"), getattr(data, split).shape, strict=False):
            assert result[split][side] == {"min": pixels, "median": pixels, "max": pixels}


# ---- refusals ----


@of_every_source
def test_bad_input_is_named(name):
    if name not in files.BAD:
        pytest.fail(f"data={name}: add a case of bad input to BAD in {files.__file__}")
    bad = files.BAD[name]
    with pytest.raises(bad.error, match=bad.says):  # as it is opened, or where all of it is read into memory
        join(make_train_batches(open_data(bad.config(name), seed=0), batch=4, first=0, seed=0).take(1))


@pytest.mark.parametrize("name", NEEDS_FILES)
def test_files_that_are_not_there_are_named_with_their_key(name):
    with pytest.raises(DataError, match=r"data\.\w+="):
        open_data(example_of("data", name), seed=0)


@of_every_source
@pytest.mark.parametrize("key", ["mean", "std"])
def test_numbers_for_other_channels_name_their_key(name, key):
    with pytest.raises(ConfigError, match=rf"data\.{key}"):
        open_data(replace(prepared(name), **{key: [0.5, 0.5]}), seed=0)
