"""CIFAR in its authors' binary files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from accumtrain.data.config import CifarBinaryConfig
from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import make_eval_batches
from tests.data.conftest import assert_refused, flip_bit, picture


def record(number: int, *labels: int) -> bytes:
    return bytes(labels) + picture(number, 32, 32).transpose(2, 0, 1).tobytes()


@pytest.fixture
def cifar10(tmp_path):
    for batch in range(1, 6):
        numbers = range(batch * 4, batch * 4 + 4)
        content = b"".join(record(number, number % 10) for number in numbers)
        (tmp_path / f"data_batch_{batch}.bin").write_bytes(content)
    (tmp_path / "test_batch.bin").write_bytes(record(100, 3) + record(101, 9))
    return tmp_path


@pytest.fixture
def cifar100(tmp_path):
    (tmp_path / "train.bin").write_bytes(b"".join(record(number, 19, number * 9) for number in range(12)))
    (tmp_path / "test.bin").write_bytes(record(100, 19, 7))
    return tmp_path


def config(folder: Path) -> CifarBinaryConfig:
    return CifarBinaryConfig(path=str(folder), augment="none", mean=[0.0], std=[1.0])


def test_cifar_10(cifar10):
    names = [f"kind{number}" for number in range(10)]
    (cifar10 / "batches.meta.txt").write_text("\n".join(names) + "\n\n")
    data = open_data(config(cifar10), seed=0)
    assert (data.num_classes, data.class_names, data.shape) == (10, names, (32, 32, 3))
    assert (data.train.size, data.splits["test"].size, data.val) == (20, 2, None)
    (batch,) = make_eval_batches(data, batch=20, split="train")
    assert batch["targets"].numpy().tolist() == [number % 10 for number in range(4, 24)]
    for place, number in enumerate(range(4, 24)):
        np.testing.assert_array_equal(np.rint(batch["inputs"][place] * 255), picture(number, 32, 32))


def test_cifar_100_has_its_fine_labels(cifar100):
    data = open_data(config(cifar100), seed=0)
    assert (data.num_classes, data.class_names, data.train.size) == (100, [], 12)
    (batch,) = make_eval_batches(data, batch=12, split="train")
    assert batch["targets"].numpy().tolist() == [number * 9 for number in range(12)]
    np.testing.assert_array_equal(np.rint(batch["inputs"][11] * 255), picture(11, 32, 32))


def test_another_byte_is_another_fingerprint(cifar10):
    before = open_data(config(cifar10), seed=0).fingerprint
    flip_bit(cifar10 / "test_batch.bin", -1)
    assert open_data(config(cifar10), seed=0).fingerprint != before


def write(name: str, content: bytes) -> Callable[[Path], int]:
    return lambda folder: (folder / name).write_bytes(content)


def cut(folder: Path) -> None:
    file = folder / "data_batch_3.bin"
    file.write_bytes(file.read_bytes()[:-1])


def no_test(folder: Path) -> None:
    (folder / "test_batch.bin").unlink()


def no_train(folder: Path) -> None:
    for file in folder.glob("data_batch_*"):
        file.unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            cut,
            r"data_batch_3.bin has 12291 bytes, not a multiple of the 3,073 of a record \(1 of labels and 3,072 of",
        ),
        (write("data_batch_2.bin", record(1, 10)), r"data_batch_2.bin holds label 10, classes of CIFAR-10 are 0\.\.9"),
        (write("test_batch.bin", b""), r"test_batch.bin is empty: unpack"),
        (no_test, r"lacks test_batch.bin: unpack"),
        (no_train, r"lacks data_batch_\*.bin: unpack"),
        (
            lambda folder: (no_test(folder), no_train(folder)),
            r"has the files of neither data set: give a folder with data_batch_\*.bin",
        ),
        (write("train.bin", record(1, 1, 1)), r"has the files of both data sets"),
        (lambda folder: (no_test(folder), (folder / "test_batch.bin").mkdir()), r"test_batch.bin is a directory"),
    ],
)
def test_refused(cifar10, damage, message):
    damage(cifar10)
    assert_refused(config(cifar10), message)


def test_records_of_one_data_set_in_files_of_the_other(cifar100):
    (cifar100 / "train.bin").write_bytes(record(1, 1))
    assert_refused(config(cifar100), r"3,074 of a record.* must be the binary version of CIFAR-100")
