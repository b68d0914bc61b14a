"""data=cifar_binary: CIFAR-10 and CIFAR-100 in their authors' binary files.

A record is a byte of label, then 1,024 bytes each of red, green and blue, row by row. CIFAR-100 has a coarse and a fine
label, of which the fine one is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import numpy as np

from accumtrain.data.config import CifarBinaryConfig
from accumtrain.data.local_files import find_file_fault
from accumtrain.data.source import ArraySplit, Source, Wanted, hash_texts
from accumtrain.errors import DataError

_SHAPE = (3, 32, 32)  # channels, height, width
_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class _Layout:
    """The files and records of one of the two: `train` is a glob, `labels` are bytes, the file `names` may be there."""

    train: str
    test: str
    labels: int
    classes: int
    names: str

    @property
    def record_bytes(self) -> int:
        return self.labels + _PIXELS


_CIFAR_10 = _Layout("data_batch_*.bin", "test_batch.bin", 1, 10, "batches.meta.txt")
_CIFAR_100 = _Layout("train.bin", "test.bin", 2, 100, "fine_label_names.txt")


def open_cifar_binary(config: CifarBinaryConfig, wanted: Wanted) -> Source:
    """Return both splits, in memory.

    Raises:
        DataError: The files of neither data set are there, or one has another size or a label beyond the classes.
    """
    folder = Path(config.path)
    layout, train, test = _find_files(folder)
    records = [np.concatenate([_read_records(file, layout) for file in files]) for files in (train, [test])]
    train_split, test_split = (_make_split(part, layout) for part in records)
    return Source(
        train_split,
        test_split,
        num_classes=layout.classes,
        class_names=_read_names(folder / layout.names, layout.classes),
        fingerprint={"data.records": hash_texts(f"{google_crc32c.value(part.tobytes()):08x}" for part in records)},
    )


def _make_split(records: np.ndarray, layout: _Layout) -> ArraySplit:
    images = records[:, layout.labels :].reshape(-1, *_SHAPE).transpose(0, 2, 3, 1)
    return ArraySplit(images, records[:, layout.labels - 1])


def _find_files(folder: Path) -> tuple[_Layout, Sequence[Path], Path]:
    """Return the layout, the files to train on and the file to test on."""
    if not folder.is_dir():
        raise DataError(f"data.path={folder} is not a directory: give the folder that holds the .bin files")
    layouts = [(layout, sorted(folder.glob(layout.train)), folder / layout.test) for layout in (_CIFAR_10, _CIFAR_100)]
    found = [(layout, train, test) for layout, train, test in layouts if train or test.exists()]
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


def _read_records(file: Path, layout: _Layout) -> np.ndarray:
    """Return uint8 [n, bytes of a record], mapped from the file."""
    if fault := find_file_fault(file):
        raise DataError(f"{file} {fault}: unpack the archive again")
    size = file.stat().st_size
    if size % layout.record_bytes:
        raise DataError(
            f"{file} has {size} bytes, not a multiple of the {layout.record_bytes:,} of a record ({layout.labels} of "
            f"labels and {_PIXELS:,} of pixels): unpack the archive again; it must be the binary version of "
            f"CIFAR-{layout.classes}"
        )
    try:
        records = np.memmap(file, np.uint8, "r", shape=(size // layout.record_bytes, layout.record_bytes))
    except OSError as error:
        raise DataError(f"{file} can't be read: {error.strerror}; check its permissions") from error
    largest = int(records[:, layout.labels - 1].max())
    if largest >= layout.classes:
        raise DataError(
            f"{file} holds label {largest}, classes of CIFAR-{layout.classes} are 0..{layout.classes - 1}: unpack the "
            "archive again"
        )
    return records


def _read_names(file: Path, classes: int) -> list[str]:
    """Return the names of the classes, a line each; empty without such a file."""
    names = file.read_text(encoding="utf-8", errors="replace").split() if file.is_file() else []
    return names if len(names) == classes == len(set(names)) else []
