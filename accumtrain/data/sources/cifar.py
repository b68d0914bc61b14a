"""CIFAR-10 and CIFAR-100 in their authors' binary files.

A record is a byte of label (CIFAR-100: a coarse and a fine one, of which the fine one is read), then 1,024 bytes each
of red, green and blue, row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import numpy as np

from accumtrain.data.config import CifarBinaryConfig
from accumtrain.data.local_files import find_file_fault
from accumtrain.data.source import ArraySplit, Source, hash_texts
from accumtrain.errors import DataError

_SHAPE = (3, 32, 32)  # channels, height, width
_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class _Layout:
    """What tells the two apart: `train` is a glob, `labels` are bytes, and the file `names` may be there."""

    train: str
    test: str
    labels: int
    classes: int
    names: str

    @property
    def record(self) -> int:
        return self.labels + _PIXELS


_CIFAR_10 = _Layout("data_batch_*.bin", "test_batch.bin", 1, 10, "batches.meta.txt")
_CIFAR_100 = _Layout("train.bin", "test.bin", 2, 100, "fine_label_names.txt")


def open_cifar_binary(config: CifarBinaryConfig, seed: int) -> Source:
    """Both splits, in memory. The seed changes nothing.

    Raises:
        DataError: The files of neither data set are there, or one has another size or a label beyond the classes.
    """
    folder = Path(config.path)
    layout, train, test = _find(folder)
    records = [np.concatenate([_records(file, layout) for file in files]) for files in (train, [test])]
    train_split, test_split = (_split(each, layout) for each in records)
    return Source(
        train_split,
        test_split,
        num_classes=layout.classes,
        class_names=_names(folder / layout.names, layout.classes),
        fingerprint={"data.records": hash_texts(f"{google_crc32c.value(each.tobytes()):08x}" for each in records)},
    )


def _split(records: np.ndarray, layout: _Layout) -> ArraySplit:
    images = records[:, layout.labels :].reshape(-1, *_SHAPE).transpose(0, 2, 3, 1)
    return ArraySplit(images, records[:, layout.labels - 1])


def _find(folder: Path) -> tuple[_Layout, Sequence[Path], Path]:
    """The layout, the files to train on and the file to test on."""
    if not folder.is_dir():
        raise DataError(f"data.path={folder} is not a directory: give the folder that holds the .bin files")
    found = [(layout, sorted(folder.glob(layout.train)), folder / layout.test) for layout in (_CIFAR_10, _CIFAR_100)]
    found = [each for each in found if each[1] or each[2].exists()]
    if len(found) != 1:
        raise DataError(
            f"data.path={folder} has the files of {'both data sets' if found else 'neither data set'}: give a folder "
            f"with {_CIFAR_10.train} and {_CIFAR_10.test} (CIFAR-10), or with {_CIFAR_100.train} and {_CIFAR_100.test} "
            "(CIFAR-100), of the binary version"
        )
    layout, train, test = found[0]
    if not train or not test.exists():
        raise DataError(f"data.path={folder} lacks {test.name if train else layout.train}: unpack all of the archive")
    return layout, train, test


def _records(file: Path, layout: _Layout) -> np.ndarray:
    """uint8 [n, bytes of a record], mapped from the file."""
    if fault := find_file_fault(file):
        raise DataError(f"{file} {fault}: unpack the archive again")
    size = file.stat().st_size
    if size % layout.record:
        raise DataError(
            f"{file} has {size} bytes, no multiple of the {layout.record:,} of a record ({layout.labels} of labels and "
            f"{_PIXELS:,} of pixels): unpack the archive again; it must be the binary version of CIFAR-{layout.classes}"
        )
    try:
        records = np.memmap(file, np.uint8, "r", shape=(size // layout.record, layout.record))
    except OSError as error:
        raise DataError(f"{file} can't be read: {error.strerror}; give yourself the permission") from error
    largest = int(records[:, layout.labels - 1].max())
    if largest >= layout.classes:
        raise DataError(
            f"{file} holds label {largest}, classes of CIFAR-{layout.classes} are 0..{layout.classes - 1}: unpack the "
            "archive again"
        )
    return records


def _names(file: Path, classes: int) -> list[str]:
    """The names of the classes, a line each; empty without such a file."""
    names = file.read_text(encoding="utf-8", errors="replace").split() if file.is_file() else []
    return names if len(names) == classes == len(set(names)) else []
