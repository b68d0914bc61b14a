"""data=idx: the IDX files of MNIST and of the data sets in its format, plain or compressed by gzip.

A file is four bytes of magic, a big-endian number of 32 bits for each dimension, then the values. The magic is 0, 0,
the type of the values (8 is uint8) and the number of dimensions: 3 of images, 1 of labels.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path

import google_crc32c
import numpy as np

from accumtrain.console import format_bytes
from accumtrain.data.config import IdxConfig
from accumtrain.data.local_files import find_file_fault, list_first, readable
from accumtrain.data.source import SPLIT_WORDS, ArraySplit, Source, Wanted, hash_texts
from accumtrain.errors import DataError
from accumtrain.process.machine import spare_bytes

_SPLITS = {"train": ("train",), "test": ("t10k", "test")}  # the first words of the files' names
_DIMENSIONS = {"images": 3, "labels": 1}
_GZIP = b"\x1f\x8b"
_UINT8 = 8
_WORD = 4  # bytes of the magic, and of a dimension
_WANTED = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte"


@dataclass(frozen=True)
class _Arrays:
    """A split: images, uint8 [n, height, width, 1], and labels, uint8 [n]. A fact is a line about one of its files."""

    images: np.ndarray
    labels: np.ndarray
    label_file: Path
    facts: list[str]


def open_idx(config: IdxConfig, wanted: Wanted) -> Source:
    """Return both splits, in memory.

    Raises:
        DataError: A file is missing, damaged or of another format, or the files do not fit each other.
    """
    folder, notes = Path(config.path), list[str]()
    if not folder.is_dir():
        raise DataError(
            f"data.path={folder} is not a directory: give the folder that holds {_WANTED}, each plain or .gz; Debian's "
            "package dataset-fashion-mnist puts those of Fashion-MNIST into /usr/share/datasets/fashion-mnist"
        )
    found = {split: _read_split(folder, split, notes) for split in _SPLITS}
    train, test = found["train"], found["test"]
    if config.pixels is None and train.images.shape[1:] != test.images.shape[1:]:
        sizes = [" x ".join(map(str, split.images.shape[1:3])) for split in (train, test)]
        raise DataError(
            f"data.path={folder}: training images are {sizes[0]} and test images {sizes[1]}: give files of one data "
            "set, or set data.image_size, to which all are resized"
        )
    classes = len(config.class_names) or int(train.labels.max()) + 1
    _check_all_are_trained(train, config.class_names or list(map(str, range(classes))))
    for split in found.values():
        _check_labels(split, classes, named=bool(config.class_names))
    return Source(
        ArraySplit(train.images, train.labels),
        ArraySplit(test.images, test.labels),
        num_classes=classes,
        notes=notes,
        class_names=list(config.class_names),
        fingerprint={"data.values": hash_texts([*train.facts, *test.facts])},
    )


def _read_split(folder: Path, split: str, notes: list[str]) -> _Arrays:
    image_file, label_file = (_find_file(folder, split, content, notes) for content in _DIMENSIONS)
    images, labels = _read_values(image_file, "images"), _read_values(label_file, "labels")
    if len(images) != len(labels):
        raise DataError(
            f"{image_file} has {len(images):,} images and {label_file} {len(labels):,} labels: give files that belong "
            "together"
        )
    facts = [f"{list(array.shape)} {google_crc32c.value(array.tobytes()):08x}" for array in (images, labels)]
    return _Arrays(images[..., None], labels, label_file, facts)


# ---- the files of a folder ----


def _find_file(folder: Path, split: str, content: str, notes: list[str]) -> Path:
    """Return the file of a split's images or labels, in the folder itself or in its sub-folder train/ or test/.

    A plain file is preferred to the same one with .gz at its end, and a note says so.
    """
    names = [
        f"{word}-{content}{mark}idx{_DIMENSIONS[content]}-ubyte"
        for word in _SPLITS[split]
        for mark in "-."  # as published, and as some programs unpack it
    ]
    with readable():
        entries = [*folder.iterdir(), *((folder / split).iterdir() if (folder / split).is_dir() else ())]
    plain = sorted(file for file in entries if file.name in names)
    packed = sorted(file for file in entries if file.suffix == ".gz" and file.stem in names)
    twice = [file for file in packed if file.with_suffix("") in plain]
    notes += [f"{file} is not read: the same file is there without .gz" for file in twice]
    files = [*plain, *(file for file in packed if file not in twice)]
    if not files:
        raise DataError(
            f"data.path={folder} has no {names[0]}, plain or .gz, neither in itself nor in {split}/: give the folder "
            f"that holds {_WANTED}"
        )
    if len(files) > 1:
        raise DataError(
            f"data.path={folder} has {len(files)} files of {SPLIT_WORDS[split]} {content}, {list_first(files)}: leave "
            "the files of one data set in it"
        )
    return files[0]


# ---- one file ----


def _read_values(file: Path, content: str) -> np.ndarray:
    """Return the values of a file, uint8 [n, height, width] or [n].

    Raises:
        DataError: It is damaged or of another format.
    """
    if fault := find_file_fault(file):
        raise DataError(f"{file} {fault}: download it again")
    with _opened(file) as stream:
        shape = _read_shape(stream, file, content)
        size, free = math.prod(shape), spare_bytes()
        if size > free:
            raise DataError(
                f"{file} takes {format_bytes(size)}, by the shape {list(shape)} in its header, and "
                f"{format_bytes(free)} are free: free some memory, or download it again, as it may be damaged"
            )
        values = stream.read(size + 1)  # to the end, where gzip compares its checksum
    if len(values) != size:
        there = f"only {len(values):,} follow" if len(values) < size else "more follow"
        raise DataError(
            f"{file} has the shape {list(shape)} in its header, {size:,} values, and {there}: download it again"
        )
    return np.frombuffer(values, np.uint8).reshape(shape)


@contextmanager
def _opened(file: Path) -> Iterator[BufferedIOBase]:
    """Open the unpacked bytes of a file, whatever its name. Raise DataError for those that can't be read."""
    try:
        with file.open("rb") as stored:
            packed = stored.read(len(_GZIP)) == _GZIP
            stored.seek(0)
            with gzip.open(stored) if packed else stored as unpacked:
                yield unpacked
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{file} can't be unpacked ({error}): download it again") from error
    except OSError as error:
        raise DataError(f"{file} can't be read: {error.strerror}; check its permissions") from error


def _read_shape(stream: BufferedIOBase, file: Path, content: str) -> Sequence[int]:
    wanted = bytes([0, 0, _UINT8, _DIMENSIONS[content]])
    magic = stream.read(_WORD)
    if magic != wanted:
        raise DataError(
            f"{file} begins with the bytes {magic.hex(' ')}, an IDX file of {content} with {wanted.hex(' ')}: download "
            "it again, or give it the name of what it holds"
        )
    dimensions = stream.read(_WORD * _DIMENSIONS[content])
    if len(dimensions) < _WORD * _DIMENSIONS[content]:
        raise DataError(f"{file} ends within its header: download it again")
    shape: list[int] = np.frombuffer(dimensions, ">u4").tolist()
    if min(shape) < 1:
        raise DataError(f"{file} has the shape {shape} in its header, so it holds no {content}: download it again")
    return shape


# ---- labels ----


def _check_labels(split: _Arrays, classes: int, *, named: bool) -> None:
    largest = int(split.labels.max())
    if largest >= classes:
        rule, remedy = (
            (f"data.class_names names {classes} classes, 0..{classes - 1}", "name all classes, or download it again")
            if named
            else (f"labels of training images are 0..{classes - 1}", "give files of one data set")
        )
        raise DataError(f"{split.label_file} holds label {largest}, {rule}: {remedy}")


def _check_all_are_trained(train: _Arrays, names: Sequence[str]) -> None:
    """Raise DataError unless there are two classes or more, and images to train on of each."""
    if len(names) < 2:
        raise DataError(f"{train.label_file}: all labels are 0: it takes two classes or more to tell apart")
    missing = np.setdiff1d(np.arange(len(names)), train.labels).tolist()
    if missing:
        raise DataError(
            f"{train.label_file} has no image of class {list_first([names[number] for number in missing])}: number the "
            f"classes from 0 without gaps, so 0..{len(names) - len(missing) - 1}, or add images"
        )
