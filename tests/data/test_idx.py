"""The IDX files of MNIST: read as Debian and MindSpore lay them out, and refused where they are damaged."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accumtrain.data.config import IdxConfig
from accumtrain.data.open_data import open_data
from accumtrain.errors import ConfigError
from tests.contract.files import idx
from tests.data.conftest import assert_refused, flip_bit, picture, read_pictures

TRAIN, TEST = range(12), range(100, 106)
NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def images(numbers: range, height: int = 6) -> bytes:
    return idx(np.stack([picture(number, height)[..., 0] for number in numbers]))


def labels(numbers: range) -> bytes:
    return idx(np.array(numbers) % 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in zip(NAMES, (images(TRAIN), labels(TRAIN), images(TEST), labels(TEST)), strict=True):
        (tmp_path / name).write_bytes(content)
    return tmp_path


def config(folder: Path, **changes: Any) -> IdxConfig:
    return IdxConfig(path=str(folder), **{"mean": [0.0], "std": [1.0], **changes})


def assert_all_is_read(folder: Path) -> None:
    data = open_data(config(folder), seed=0)
    assert (data.num_classes, data.shape, data.val, data.notes) == (3, (6, 6, 1), None, [])
    for split, numbers in {"train": TRAIN, "test": TEST}.items():
        assert read_pictures(data, split) == {number: number % 3 for number in numbers}


def pack(file: Path) -> None:
    file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    file.unlink()


def as_debian(folder: Path) -> None:
    for name in NAMES:
        pack(folder / name)


def as_mindspore(folder: Path) -> None:
    for name in NAMES:
        inside = folder / ("train" if name.startswith("train") else "test")
        inside.mkdir(exist_ok=True)
        shutil.move(folder / name, inside)


def with_dots(folder: Path) -> None:
    for name in NAMES:
        (folder / name).rename(folder / name.replace("-idx", ".idx"))


@pytest.mark.parametrize("arrange", [lambda _: None, as_debian, as_mindspore, with_dots])
def test_read_as_they_are_laid_out(folder, arrange):
    before = open_data(config(folder), seed=0).fingerprint
    arrange(folder)
    assert_all_is_read(folder)
    assert open_data(config(folder), seed=0).fingerprint == before


def test_a_file_is_unpacked_by_its_content(folder):
    """Browsers unpack some downloads and keep the name."""
    (folder / NAMES[0]).rename(folder / f"{NAMES[0]}.gz")
    (folder / NAMES[1]).write_bytes(gzip.compress((folder / NAMES[1]).read_bytes()))
    assert_all_is_read(folder)


def test_of_a_file_that_is_there_packed_too_the_plain_one_is_read(folder):
    (folder / f"{NAMES[1]}.gz").write_bytes(b"not read")
    (note,) = open_data(config(folder), seed=0).notes
    assert note.endswith("train-labels-idx1-ubyte.gz is not read: the same file is there without .gz")


def test_names_of_classes_and_a_share_to_validate_on(folder):
    data = open_data(config(folder, class_names=["ant", "bee", "cat"], val_fraction=0.25), seed=0)
    assert data.class_names == ["ant", "bee", "cat"]
    assert {name: split.size for name, split in data.splits.items()} == {"train": 9, "val": 3, "test": 6}


def test_another_byte_is_another_fingerprint(folder):
    before = open_data(config(folder), seed=0).fingerprint
    flip_bit(folder / NAMES[2], -1)
    assert open_data(config(folder), seed=0).fingerprint != before


def test_images_of_two_sizes_are_resized(folder):
    (folder / NAMES[2]).write_bytes(images(TEST, 8))
    assert_refused(config(folder), r"training images are 6 x 6 and test images 8 x 6: .*set data\.image_size")
    assert open_data(config(folder, image_size=7), seed=0).shape == (7, 7, 1)


# ---- refusals ----


Damage = Callable[[Path], object]


def write(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


def cut(name: str, size: int) -> Damage:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def packed(damage: Callable[[bytes], bytes]) -> Damage:
    def apply(folder: Path) -> None:
        content = gzip.compress((folder / NAMES[0]).read_bytes(), mtime=0)
        (folder / NAMES[0]).write_bytes(damage(content))

    return apply


def with_checksum_changed(content: bytes) -> bytes:
    return content[:-8] + bytes([content[-8] ^ 1]) + content[-7:]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(shutil.rmtree, "is not a directory: give the folder .* apt|is not a directory", id="no folder"),
        pytest.param(lambda folder: (folder / NAMES[3]).unlink(), "has no t10k-labels-idx1-ubyte, plain", id="missing"),
        pytest.param(write(NAMES[1], b""), "train-labels-idx1-ubyte is empty: download", id="empty"),
        pytest.param(
            write(NAMES[0], b"\x89PNG and more"),
            "begins with the bytes 89 50 4e 47, an IDX .* images with 00 00 08 03",
            id="magic",
        ),
        pytest.param(
            write(NAMES[0], labels(TRAIN)), "bytes 00 00 08 01, .* give it the name of what", id="labels as images"
        ),
        pytest.param(cut(NAMES[1], 6), "train-labels-idx1-ubyte ends within its header", id="no shape"),
        pytest.param(
            cut(NAMES[0], -1), r"the shape \[12, 6, 6\] in its header, 432 values, .* only 431 follow", id="truncated"
        ),
        pytest.param(
            write(NAMES[1], labels(TRAIN) + b"\0"), "in its header, 12 values, and more follow", id="too long"
        ),
        pytest.param(
            write(NAMES[0], bytes([0, 0, 8, 3]) + b"\xff" * 12 + b"0"),
            "are free: free some memory, or download it again",
            id="a huge shape",
        ),
        pytest.param(
            write(NAMES[1], bytes([0, 0, 8, 1, 0, 0, 0, 0])), r"has the shape \[0\] .* so it holds no labels", id="none"
        ),
        pytest.param(packed(lambda content: content[:-20]), "can't be unpacked", id="truncated gz"),
        pytest.param(packed(with_checksum_changed), "can't be unpacked .*CRC", id="gz with another checksum"),
        pytest.param(packed(lambda content: content + b"more"), "can't be unpacked", id="gz with a tail"),
        pytest.param(
            write(NAMES[1], labels(range(11))), "has 12 images and .*train-labels-idx1-ubyte 11 labels", id="counts"
        ),
        pytest.param(
            write(NAMES[3], idx(np.array([0, 1, 2, 3, 0, 1]))),
            r"t10k-labels-idx1-ubyte holds label 3, labels of training images are 0\.\.2",
            id="a label of tests",
        ),
        pytest.param(write(NAMES[1], idx(np.zeros(12))), "it takes two classes", id="one class"),
        pytest.param(
            write(NAMES[1], idx(np.array(TRAIN) % 3 * 2)), r"no image of class 1, 3: number .* so 0\.\.2", id="gaps"
        ),
        pytest.param(
            lambda folder: shutil.copy(folder / NAMES[3], folder / "test-labels-idx1-ubyte"),
            "has 2 files of test labels",
            id="two files",
        ),
        pytest.param(
            lambda folder: ((folder / NAMES[3]).unlink(), (folder / NAMES[3]).mkdir()), "is a directory", id="a folder"
        ),
    ],
)
def test_damaged_or_mismatched_files_are_refused(folder, damage, message):
    damage(folder)
    assert_refused(config(folder), message)


def test_a_label_beyond_the_names_is_refused(folder):
    message = r"train-labels-idx1-ubyte holds label 2, data\.class_names names 2 classes, 0\.\.1: name all classes"
    assert_refused(config(folder, class_names=["ant", "bee"]), message)
    assert_refused(config(folder, class_names=["ant", "bee", "cat", "dog"]), "no image of class dog")


@pytest.mark.parametrize(("names", "message"), [(["ant", "ant"], "ant more than once"), (["ant"], "names 1 class")])
def test_names_that_can_not_be_right(folder, names, message):
    with pytest.raises(ConfigError, match=message):
        config(folder, class_names=names).check()
