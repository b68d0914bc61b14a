from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from accumtrain.data.checking import repeats
from accumtrain.data.checking.repeats import find_repeats
from accumtrain.data.open_data import open_data


@pytest.fixture
def root(make_folder):
    make_folder("photos/train", count=4)
    make_folder("photos/test", count=4, height=5)
    return make_folder("photos/val", count=3, height=4).parent


def copy(source: Path, target: Path) -> None:
    target.write_bytes(source.read_bytes())


def test_nothing_is_repeated(root, folder_config):
    found = find_repeats(open_data(folder_config(root, image_size=6), seed=0))
    assert (found.counts, found.warnings, found.note) == ({}, [], "")


def test_files_in_two_splits(root, folder_config):
    copy(root / "train/ant/01.png", root / "test/ant/other.png")
    (root / "test/bee/link.png").symlink_to(root / "train/bee/02.png")
    copy(root / "train/bee/00.png", root / "val/bee/other.png")
    copy(root / "test/bee/03.png", root / "val/bee/no training image.png")
    found = find_repeats(open_data(folder_config(root, image_size=6), seed=0))
    assert found.counts == {"val": 1, "test": 2}
    assert found.warnings[1].startswith(
        f"2 of 10 test images are training images, too ({root}/test/ant/other.png is {root}/train/ant/01.png)"
    )


def test_files_in_two_classes(root, folder_config):
    copy(root / "train/ant/01.png", root / "train/bee/other.png")
    copy(root / "train/ant/02.png", root / "train/ant/other.png")  # of one class: no contradiction
    copy(root / "test/ant/02.png", root / "val/bee/other.png")
    found = find_repeats(open_data(folder_config(root, image_size=6), seed=0))
    assert found.counts == {"classes": 2}
    assert found.warnings[0].startswith("2 images are in two classes, byte for byte: ")


def test_files_of_one_size_with_other_contents(root, folder_config):
    size = (root / "train/ant/01.png").stat().st_size
    other = root / "test/ant/00.png"
    other.write_bytes(other.read_bytes() + bytes(size - other.stat().st_size))
    assert not find_repeats(open_data(folder_config(root, image_size=6), seed=0)).counts


def test_it_is_told(root, folder_config, capsys):
    copy(root / "train/ant/01.png", root / "test/ant/other.png")
    data = open_data(folder_config(root, image_size=6), seed=0)
    find_repeats(data).tell()
    late = find_repeats(data, seconds=-1)
    late.tell()
    printed = capsys.readouterr()
    assert "warning: 1 of 9 test images is a training image, too" in printed.err
    assert "no time was left to compare them: job=check does" in printed.out
    assert not late.counts


def test_time_ends_among_files_of_one_size(root, folder_config, monkeypatch):
    """As all of a folder of BMP files may be."""
    for file in root.rglob("*.png"):
        file.write_bytes(file.read_bytes().ljust(1000, b"\0"))
    data = open_data(folder_config(root, image_size=6), seed=0)
    read = []
    monkeypatch.setattr(repeats, "time", SimpleNamespace(monotonic=itertools.count().__next__))
    monkeypatch.setattr(repeats, "_hash", read.append)
    assert "no time was left" in find_repeats(data, seconds=2).note
    assert len(read) == 2


def test_records_that_two_globs_name(make_shards, tfrecord_config, tmp_path):
    make_shards("train", (4, 3))
    make_shards("test", (5,))
    (tmp_path / "test-linked").symlink_to(tmp_path / "train-0")
    found = find_repeats(open_data(tfrecord_config(), seed=0))
    assert found.counts == {"test": 4}
    assert found.warnings[0].startswith(
        f"4 of 9 test images are training images, too (record 0 of {tmp_path.resolve()}/train-0)"
    )
    assert not find_repeats(open_data(tfrecord_config(test_path=str(tmp_path / "test-0")), seed=0)).counts


@pytest.mark.parametrize(
    ("train", "test", "count"), [("train[:20]", "train[15:]", 5), ("train[:15]", "train[15:]", 0), ("all", "test", 7)]
)
def test_slices_of_one_data_set(prepare_tfds, train, test, count):
    found = find_repeats(open_data(prepare_tfds("tfrecord", train_split=train, test_split=test), seed=0))
    assert found.counts == ({"test": count} if count else {})


@pytest.mark.parametrize(
    ("one", "other", "count"),
    [([1, 0], [1, 1], 1), ([1, 0], [1, 0], 0), ([1, np.nan], [1, 1], 0), ([0.5, np.nan], [0.25, np.nan], 1)],
    ids=["different", "the same", "unknown in one", "numbers"],
)
def test_an_image_with_two_targets(root, folder_config, one, other, count):
    """Of labels or numbers; an unknown one is no other."""
    copy(root / "train/ant/00.png", root / "train/bee/00.png")
    data = open_data(folder_config(root, image_size=6), seed=0)
    for split in data.whole_splits.values():
        split.known_labels = np.full([split.size, 2], [1, np.nan], np.float32)
    train = data.whole_splits["train"]
    places = [[*map(str, train.files)].index(str(root / name)) for name in ("train/ant/00.png", "train/bee/00.png")]
    train.known_labels[places] = one, other
    found = find_repeats(data)
    assert found.counts == ({"targets": 1} if count else {})
    if count:
        ant, bee = (root / f"train/{name}/00.png" for name in ("ant", "bee"))
        (told,) = found.warnings
        assert told == f"1 image has different targets, byte for byte: {ant} is {bee}; job=check names all"


def test_files_with_labels_in_two_splits(root, folder_config):
    copy(root / "train/ant/00.png", root / "test/bee/00.png")
    data = open_data(folder_config(root, image_size=6), seed=0)
    for split in data.whole_splits.values():
        split.known_labels = np.zeros([split.size, 2], np.float32)
    assert find_repeats(data).counts == {"test": 1}
