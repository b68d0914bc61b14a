"""The user's own images and labels: the arrays of a NumPy .npz file."""

from __future__ import annotations

import lzma
import zipfile
import zlib
from pathlib import Path

import numpy as np

from accumtrain.console import format_bytes
from accumtrain.data.fingerprint import digest
from accumtrain.data.part import held_out_of
from accumtrain.data.source import ArraySplit, Source
from accumtrain.errors import DataError
from accumtrain.kinds.sources import NpzConfig
from accumtrain.process.free_memory import free_bytes

_OTHERS = ("val", "test")  # splits whose arrays have names such as val_images
_NAMED = 5
# What zipfile and NumPy raise for content that is damaged, encrypted, of another method, or larger than the file says.
_UNREADABLE = (
    *(ValueError, EOFError, OSError, RuntimeError, NotImplementedError, MemoryError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)


def open_npz(config: NpzConfig, seed: int) -> Source:
    """The arrays `images` and `labels`, and the test arrays or a part held out. The seed changes nothing.

    Raises:
        DataError: The file can't be read, or has no valid arrays of images and labels.
    """
    file = Path(config.path)
    if not file.is_file():
        raise DataError(f"data.path={config.path} is not a file: give the .npz file that holds images and labels")
    try:
        packed = zipfile.ZipFile(file)
    except OSError as error:
        raise DataError(f"data.path={config.path} can't be read: {error.strerror}") from error
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise DataError(
            f"data.path={config.path} is no .npz file, or a truncated one: write it with numpy.savez"
        ) from error
    with packed:
        arrays = _Arrays(file, packed)
        images, labels = arrays.read("")
        others = {split: arrays.read(f"{split}_") for split in _OTHERS if arrays.has(f"{split}_")}
        for other_images, _ in others.values():
            _check_shapes(file, images, other_images, resized=config.pixels is not None)
        if not others:
            test = _hold_out(file, labels, config.test_fraction)
            images, labels, others["test"] = images[~test], labels[~test], (images[test], labels[test])
    num_classes = _count_classes(file, labels, np.concatenate([labels for _, labels in others.values()]))
    splits = {split: ArraySplit(*each) for split, each in others.items()}
    return Source(
        ArraySplit(images, labels),
        splits.get("test"),
        num_classes,
        arrays.notes,
        val=splits.get("val"),
        fingerprint={"data.arrays": digest(arrays.checksums)},
    )


class _Arrays:
    """Reads arrays of an opened file, and raises DataError for those that are not images or labels.

    Attributes:
        notes: What the user should know about what was read.
        checksums: Name and CRC-32 of each array that was read; it covers shape, type and values.
    """

    def __init__(self, file: Path, packed: zipfile.ZipFile) -> None:
        self.notes: list[str] = []
        self.checksums: list[str] = []
        self._file = file
        self._packed = packed
        self._members = {info.filename.removesuffix(".npy"): info for info in packed.infolist()}

    def has(self, prefix: str) -> bool:
        return f"{prefix}images" in self._members or f"{prefix}labels" in self._members

    def read(self, prefix: str) -> tuple[np.ndarray, np.ndarray]:
        """Images as an ArraySplit takes them, and a label for each."""
        images, labels = self._images(f"{prefix}images"), self._labels(f"{prefix}labels")
        if len(images) != len(labels):
            raise DataError(
                f"{self._file}: {prefix}images has {len(images)} images, {prefix}labels has {len(labels)} labels: "
                "give one label for each image"
            )
        return images, labels

    def _images(self, name: str) -> np.ndarray:
        """uint8 0..255, or float32 0..1, [n, height, width, channels]."""
        images = self._array(name)
        kind, shape = images.dtype.kind, list(images.shape)
        if kind not in "iuf":
            raise DataError(f"{self._file}: {name} is of type {images.dtype}: pixels must be integers or floats")
        if images.ndim == 3:
            images = images[..., None]
        if images.ndim != 4 or images.shape[3] not in (1, 3):
            raise DataError(
                f"{self._file}: {name} has the shape {shape}: "
                "give [N, height, width] or [N, height, width, channels] with 1 or 3 channels"
            )
        if images.size == 0:
            raise DataError(f"{self._file}: {name} has the shape {shape}: give at least one image, and one pixel")
        low, high = images.min(), images.max()
        if not (low >= 0 and high <= 255):  # nor where one is NaN
            raise DataError(
                f"{self._file}: {name} has pixels of {low} to {high}: scale them to 0..255, or floats to 0..1"
            )
        white = 1 if kind == "f" and high <= 1 else 255
        if kind == "f" or high <= 1:
            self.notes.append(f"{name} is {images.dtype} with a maximum of {high}: taken as 0..{white}")
        if kind != "f":
            return images.astype(np.uint8, copy=False)
        images = images.astype(np.float32, copy=False)
        images /= white
        return images

    def _labels(self, name: str) -> np.ndarray:
        labels = self._array(name)
        if labels.dtype.kind not in "iu":
            raise DataError(
                f"{self._file}: {name} is of type {labels.dtype}: classes are counted, so labels must be integers; "
                "save whole numbers as labels.astype('int64')"
            )
        if labels.ndim != 1:
            raise DataError(
                f"{self._file}: {name} has the shape {list(labels.shape)}: give [N], a class for each image"
            )
        if labels.size and labels.min() < 0:
            raise DataError(f"{self._file}: {name} holds {labels.min()}: number the classes from 0")
        return labels

    def _array(self, name: str) -> np.ndarray:
        if name not in self._members:
            names = ", ".join(self._members) or "none at all"
            raise DataError(f"{self._file} has no array {name}: it has {names}; save it under that name")
        member, free = self._members[name], free_bytes()
        if member.file_size > free:
            raise DataError(
                f"{self._file}: {name} takes {format_bytes(member.file_size)}, {format_bytes(free)} of memory are "
                "free: save fewer images, or give them as files (data=folder)"
            )
        try:
            with self._packed.open(member) as stream:
                array = np.lib.format.read_array(stream, allow_pickle=False)
                stream.read()  # to the end, where the checksum is compared
        except _UNREADABLE as error:
            raise DataError(
                f"{self._file}: {name} can't be read ({error}): save it again, as an array of numbers"
            ) from error
        self.checksums.append(f"{name} {member.CRC}")
        return array


def _check_shapes(file: Path, images: np.ndarray, test_images: np.ndarray, *, resized: bool) -> None:
    first = 3 if resized else 1
    if images.shape[first:] != test_images.shape[first:]:
        train, test = (" x ".join(map(str, shape[1:])) for shape in (images.shape, test_images.shape))
        raise DataError(
            f"{file}: images are {train}, those to evaluate on {test}: "
            "they must have the same channels and, unless data.image_size is set, the same size"
        )


def _hold_out(file: Path, labels: np.ndarray, fraction: float) -> np.ndarray:
    """A mask of the test examples: of n in a class round(n * fraction), but at least one, evenly spaced in the file."""
    test = np.zeros(len(labels), bool)
    classes, counts = np.unique(labels, return_counts=True)
    by_class = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
    for label, members in zip(classes, by_class, strict=True):
        if len(members) < 2:
            raise DataError(
                f"{file}: class {label} has a single example: it takes two, to train and to test, "
                "or the arrays test_images and test_labels"
            )
        held = held_out_of(len(members), fraction)
        test[members[np.arange(held) * len(members) // held]] = True
    return test


def _count_classes(file: Path, labels: np.ndarray, test_labels: np.ndarray) -> int:
    num_classes = int(max(labels.max(), test_labels.max())) + 1
    if num_classes < 2:
        raise DataError(f"{file}: all labels are 0: it takes two classes or more to tell apart")
    found = np.unique(labels)
    missing = np.setdiff1d(np.arange(min(num_classes, len(found) + _NAMED)), found)[:_NAMED]
    if missing.size:
        more = ", ..." if num_classes - len(found) > len(missing) else ""
        raise DataError(
            f"{file}: labels run up to {num_classes - 1}, but there is no example to train on of class "
            f"{', '.join(map(str, missing))}{more}: number the classes from 0 without gaps, or add examples"
        )
    return num_classes
