"""data=npz: images and labels of one's own, the arrays of a NumPy .npz file.

Types and shapes are looked at before values are read, which may take all memory.
"""

from __future__ import annotations

import lzma
import textwrap
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from accumtrain.console import format_bytes
from accumtrain.data.config import NpzConfig
from accumtrain.data.holdout import hold_out_evenly
from accumtrain.data.local_files import find_file_fault
from accumtrain.data.source import ArraySplit, Source, hash_texts
from accumtrain.data.sources.labels import BadLabels, class_numbers, class_texts
from accumtrain.errors import DataError
from accumtrain.process.machine import free_bytes

_SCALES = (1, 255)
_BEYOND = 0.25  # share of the largest values by which floats may overshoot, as after a resize with cubic weights
_TEXTS = "US"  # kinds of dtypes
_SPLITS = {"": "train", "train_": "train", "val_": "val", "test_": "test"}  # by the prefix of their arrays' names
_LONGEST_HEADER = 1024  # bytes; that of plain numbers or texts takes some 100
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_CHUNK = 2**20  # bytes
# zipfile and NumPy raise these for content that is damaged, encrypted, of another method, or larger than the file says.
_UNREADABLE = (
    *(ValueError, EOFError, OSError, RuntimeError, NotImplementedError, MemoryError, TypeError, SyntaxError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, tokenize.TokenError),
)
_LISTED = 5  # classes in a message


def open_npz(config: NpzConfig, seed: int) -> Source:
    """Return the arrays of images and labels, with the test arrays or a part held out. The seed changes nothing.

    Raises:
        DataError: The file can't be read, or has no valid arrays of images and labels.
    """
    path = config.path
    with NpzFile.opened(path) as file:
        prefixes = file.prefixes
        for prefix in prefixes.values():
            file.check_headers(prefix)
        labels = _number_classes(
            path, {f"{prefix}labels": file.read_array(f"{prefix}labels") for prefix in prefixes.values()}
        )
        images = {split: file.read_array(f"{prefix}images") for split, prefix in prefixes.items()}
    images = {split: array[..., None] if array.ndim == 3 else array for split, array in images.items()}
    for other_images in images.values():
        _check_shapes(path, images["train"], other_images, resized=config.pixels is not None)
    pixels = [
        Pixels(f"{prefixes[split]}images", array.dtype, array.min(), array.max()) for split, array in images.items()
    ]
    white, notes = find_white(path, pixels, config.scale)
    examples = {
        split: (_scale(images.pop(split), white), labels.classes[f"{prefix}labels"])
        for split, prefix in prefixes.items()
    }
    _check_all_are_trained(path, labels, examples["train"][1])
    if len(examples) == 1:
        stored, classes = examples["train"]
        test = _hold_out(path, labels, classes, config.test_fraction)
        examples = {"train": (stored[~test], classes[~test]), "test": (stored[test], classes[test])}
    splits = {split: ArraySplit(*arrays, white) for split, arrays in examples.items()}
    return Source(
        splits["train"],
        splits.get("test"),
        labels.num_classes,
        notes,
        class_names=labels.names,
        val=splits.get("val"),
        fingerprint={"data.arrays": hash_texts(file.checksums)},
    )


@dataclass(frozen=True)
class _Labels:
    """The labels of all arrays.

    Attributes:
        classes: The class of each example, int64 [N], by name of the array.
        names: The names of the classes; empty if they are numbered.
    """

    classes: dict[str, np.ndarray]
    num_classes: int
    names: list[str]

    def name(self, number: int) -> str:
        return self.names[number] if self.names else str(number)


def _number_classes(path: str, labels: Mapping[str, np.ndarray]) -> _Labels:
    texts = {name: array.dtype.kind in _TEXTS for name, array in labels.items()}
    if len(set(texts.values())) > 1:
        raise DataError(
            f"{path}: {' and '.join(texts)} mix texts and numbers: save all labels as texts, or all as numbers"
        )
    classes: dict[str, np.ndarray] = {}
    for name, array in labels.items():
        try:
            classes[name] = class_texts(array) if texts[name] else class_numbers(array)
        except BadLabels as bad:
            raise DataError(f"{path}: {name} {bad}") from bad
    if any(texts.values()):
        names = np.unique(np.concatenate(list(classes.values())))
        return _Labels(
            {name: np.searchsorted(names, values) for name, values in classes.items()}, len(names), names.tolist()
        )
    columns = [array.shape[1] for array in labels.values() if array.ndim == 2]
    return _Labels(classes, max([*columns, *(int(numbers.max()) + 1 for numbers in classes.values())]), [])


def _scale(images: np.ndarray, white: int) -> np.ndarray:
    """Return integers as uint8, 0..white; floats as float32, 0..1."""
    if images.dtype.kind != "f":
        return images.astype(np.uint8, copy=False)
    images = images.astype(np.float32, copy=False)
    images /= white
    return np.clip(images, 0, 1, out=images)


def _check_shapes(path: str, images: np.ndarray, test_images: np.ndarray, *, resized: bool) -> None:
    first = 3 if resized else 1
    if images.shape[first:] != test_images.shape[first:]:
        train, test = (" x ".join(map(str, shape[1:])) for shape in (images.shape, test_images.shape))
        raise DataError(
            f"{path}: images are {train}, those to evaluate on {test}: "
            "they must have the same channels and, unless data.image_size is set, the same size"
        )


def _hold_out(path: str, labels: _Labels, classes: np.ndarray, fraction: float) -> np.ndarray:
    """Return a mask of the test examples: `holdout_size` of each class, evenly spaced in the file."""
    test = np.zeros(len(classes), bool)
    found, counts = np.unique(classes, return_counts=True)
    by_class = np.split(np.argsort(classes, kind="stable"), np.cumsum(counts)[:-1])
    for number, members in zip(found.tolist(), by_class, strict=True):
        if len(members) < 2:
            raise DataError(
                f"{path}: class {labels.name(number)} has a single example: it takes two, to train and to test; "
                "add one, or the arrays test_images and test_labels"
            )
        test[members[hold_out_evenly(len(members), fraction)]] = True
    return test


def _check_all_are_trained(path: str, labels: _Labels, classes: np.ndarray) -> None:
    """Raise DataError unless there are two classes or more, and examples to train on of each."""
    count, found = labels.num_classes, np.unique(classes)
    if count < 2:
        raise DataError(f"{path}: all labels are {labels.name(0)}: it takes two classes or more to tell apart")
    missing = np.setdiff1d(np.arange(min(count, len(found) + _LISTED)), found)[:_LISTED].tolist()
    if missing:
        more = ", ..." if count - len(found) > len(missing) else ""
        numbered = "" if labels.names else f"labels run up to {count - 1}, but "
        raise DataError(
            f"{path}: {numbered}there is no example to train on of class {', '.join(map(labels.name, missing))}{more}: "
            + ("number the classes from 0 without gaps, or add examples" if numbered else "add examples")
        )


# ---- the file ----


class NpzFile:
    """An opened file. Its methods raise DataError for an array that can't be images or labels.

    Attributes:
        prefixes: By split, the prefix of the names of its arrays.
        checksums: Name and CRC-32 of each array that was read; it covers shape, type and values.
    """

    @classmethod
    @contextmanager
    def opened(cls, path: str) -> Iterator[NpzFile]:
        """Raise DataError if data.path names no file, or none of this format."""
        if fault := find_file_fault(Path(path)):
            raise DataError(f"data.path={path} {fault}: give the .npz file that holds images and labels")
        try:
            packed = zipfile.ZipFile(path)
        except OSError as error:
            raise DataError(f"data.path={path} can't be read: {error.strerror}; check its permissions") from error
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise DataError(
                f"data.path={path} is not an .npz file, or is truncated: write it with numpy.savez"
            ) from error
        with packed:
            yield cls(path, packed)

    def __init__(self, path: str, packed: zipfile.ZipFile) -> None:
        self.checksums: list[str] = []
        self._path = path
        self._packed = packed
        self._members = {info.filename.removesuffix(".npy"): info for info in packed.infolist()}
        self.prefixes = {split: prefix for prefix, split in _SPLITS.items() if self._has(prefix)}
        if self._has("") and self._has("train_"):
            raise DataError(f"{path} has images and train_images: save those to train on under one of these names")
        self.prefixes.setdefault("train", "")

    def check_headers(self, prefix: str) -> None:
        """Raise DataError for types and shapes that images and labels of a split can't have."""
        (images, pixel_type), (labels, label_type) = (
            self._read_header(f"{prefix}{name}") for name in ("images", "labels")
        )
        self._check_images(f"{prefix}images", images, pixel_type)
        self._check_labels(f"{prefix}labels", labels, label_type)
        if images[0] != labels[0]:
            raise DataError(
                f"{self._path}: {prefix}images has {images[0]} images, {prefix}labels has {labels[0]} labels: "
                "give one label for each image"
            )

    def read_array(self, name: str) -> np.ndarray:
        size, free = self._members[name].file_size, free_bytes()
        if size > free:
            raise DataError(
                f"{self._path}: {name} takes {format_bytes(size)}, {format_bytes(free)} of memory are "
                "free: save fewer images, or give them as files (data=folder)"
            )
        with self._stream(name) as stream:
            array = np.lib.format.read_array(stream, allow_pickle=False)
            while stream.read(_CHUNK):  # to the end, where the checksum is compared
                pass
        self.checksums.append(f"{name} {self._members[name].CRC}")
        return array

    def _has(self, prefix: str) -> bool:
        return not {f"{prefix}images", f"{prefix}labels"}.isdisjoint(self._members)

    def _check_images(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        if dtype.kind not in "iuf":
            raise DataError(f"{self._path}: {name} is of type {dtype}: pixels must be integers or floats")
        if len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] not in (1, 3)):
            raise DataError(
                f"{self._path}: {name} has the shape {list(shape)}: "
                "give [N, height, width] or [N, height, width, channels] with 1 or 3 channels"
            )
        if min(shape) < 1:
            raise DataError(f"{self._path}: {name} has the shape {list(shape)}: give at least one image, and one pixel")

    def _check_labels(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        if dtype.kind not in "biuf" + _TEXTS:
            raise DataError(
                f"{self._path}: {name} is of type {dtype}: save whole numbers by labels.astype('int64'), or the names "
                "of classes by labels.astype(str)"
            )
        rows = len(shape) == 2 and shape[1] > 0
        if not (len(shape) == 1 or (rows and (shape[1] == 1 or dtype.kind not in _TEXTS))):
            raise DataError(
                f"{self._path}: {name} has the shape {list(shape)}: give [N], a class for each image, or one-hot rows "
                "[N, classes]"
            )

    def _read_header(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        with self._stream(name) as stream:
            version = np.lib.format.read_magic(stream)
            if version not in _HEADERS:
                raise ValueError(f"version {version} of the format is for structures with names")
            shape, _, dtype = _HEADERS[version](stream, max_header_size=_LONGEST_HEADER)
        return shape, dtype

    @contextmanager
    def _stream(self, name: str) -> Iterator[IO[bytes]]:
        """Open the bytes of an array. Raise DataError for what can't be read of them."""
        if name not in self._members:
            names = ", ".join(self._members) or "none at all"
            raise DataError(f"{self._path} has no array {name}: it has {names}; save it under that name")
        try:
            with self._packed.open(self._members[name]) as stream:
                yield stream
        except _UNREADABLE as error:
            reason = textwrap.shorten(str(error), 200)
            raise DataError(
                f"{self._path}: {name} can't be read ({reason}): save it again, as an array of numbers, or of texts by "
                ".astype(str)"
            ) from error


# ---- the value of white in arrays of pixels: 1 or 255, one decision for all arrays of a file ----


@dataclass(frozen=True)
class Pixels:
    """An array of pixels by its name, its dtype, its smallest and its largest value."""

    name: str
    dtype: np.dtype
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.name} has pixels of {self.low} to {self.high}"

    @property
    def are_floats(self) -> bool:
        return self.dtype.kind == "f"

    def can_have(self, white: int) -> bool:
        """Return whether these may be pixels of 0 to `white`."""
        beyond = _BEYOND if self.are_floats else 0
        return bool(-beyond * self.high <= self.low and self.high <= white + beyond * white)  # False for NaN

    @property
    def white(self) -> int | None:
        """The value of white, as far as these pixels alone tell; None if it may be either."""
        if self.are_floats and self.can_have(1):
            return 1
        whole_range = self.low >= 0 and (self.high > 1 if not self.are_floats else 128 <= self.high <= 255)
        return 255 if whole_range else None


def find_white(file: str, arrays: Sequence[Pixels], scale: int | str) -> tuple[int, list[str]]:
    """Return the value of white in all arrays of a file, and notes about it.

    Args:
        scale: data.scale: 1, 255, or auto, which asks the arrays.

    Raises:
        DataError: An array has other pixels, or the arrays do not tell the same.
    """
    found = {pixels.white for pixels in arrays} - {None}
    white = scale if isinstance(scale, int) else found.pop() if len(found) == 1 else None
    wrong = [pixels for pixels in arrays if white is not None and not pixels.can_have(white)]
    if white is None or wrong:
        possible = [value for value in _SCALES if all(pixels.can_have(value) for pixels in arrays)]
        remedies = [f"set data.scale={value} if {value} is white in all arrays" for value in possible]
        raise DataError(
            f"{file}: {', '.join(map(str, wrong or arrays))}, "
            + ("which does not tell the value of white" if white is None else f"and white is taken as {white}")
            + f": {', or '.join([*remedies, 'save all arrays as 0..255, or all as floats of 0..1'])}"
        )
    return white, [_describe(pixels, white) for pixels in arrays if pixels.are_floats or white == 1]


def _describe(pixels: Pixels, white: int) -> str:
    note = f"{pixels.name} is {pixels.dtype} with a maximum of {pixels.high}: taken as 0..{white}"
    return note if pixels.low >= 0 and pixels.high <= white else f"{note}, values beyond that are cut off"
