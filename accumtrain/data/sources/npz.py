"""data=npz: images and labels of one's own, the arrays of a NumPy .npz file.

Types and shapes are looked at before values are read, which may take all memory.
"""

from __future__ import annotations

import lzma
import textwrap
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar, TypeVar

import numpy as np

from accumtrain.console import format_bytes
from accumtrain.data.config import NpzConfig
from accumtrain.data.holdout import hold_out_evenly
from accumtrain.data.local_files import find_file_fault
from accumtrain.data.source import SPLIT_WORDS, ArraySplit, Source, hash_texts
from accumtrain.data.sources.targets import ClassTargets, TargetReader, Targets
from accumtrain.errors import DataError
from accumtrain.fields import normal_form
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
_CLASSES = ClassTargets()


def open_npz(config: NpzConfig, seed: int, reader: TargetReader = _CLASSES) -> Source:
    """Return the arrays of images and labels, with the test arrays or a part held out. The seed changes nothing.

    Examples without a target are left out.

    Args:
        reader: The way to read the labels.

    Raises:
        DataError: The file can't be read, or has no valid arrays of images and labels.
    """
    path = config.path
    with NpzFile.opened(path) as file:
        prefixes = file.prefixes
        for prefix in prefixes.values():
            file.check_headers(prefix)
        targets = file.read_targets(reader)
        images = {split: file.read_array(f"{prefix}images") for split, prefix in prefixes.items()}
    images = {split: array[..., None] if array.ndim == 3 else array for split, array in images.items()}
    for other_images in images.values():
        _check_shapes(path, images["train"], other_images, resized=config.pixels is not None)
    pixels = [
        PixelRange(f"{prefixes[split]}images", array.dtype, array.min(), array.max()) for split, array in images.items()
    ]
    white, notes = find_white(path, pixels, config.scale)
    arrays = {split: _scale(images.pop(split), white) for split in prefixes}
    _check_all_are_trained(path, targets["train"])
    examples = {split: (arrays[split], of_split.values) for split, of_split in targets.items()}
    for split, of_split in targets.items():
        if not of_split.known.all():
            notes.append(f"{np.sum(~of_split.known):,} {SPLIT_WORDS[split]} examples without a target are left out")
            examples[split] = arrays[split][of_split.known], of_split.values[of_split.known]
    if len(examples) == 1:
        stored, values = examples["train"]
        test = _hold_out(path, targets["train"], values, config.test_fraction)
        examples = {"train": (stored[~test], values[~test]), "test": (stored[test], values[test])}
    splits = {split: ArraySplit(*arrays, white) for split, arrays in examples.items()}
    return Source(
        splits["train"],
        splits.get("test"),
        targets["train"].count,
        notes,
        class_names=targets["train"].names,
        val=splits.get("val"),
        fingerprint={"data.arrays": hash_texts(file.checksums)},
    )


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


def _hold_out(path: str, targets: Targets, values: np.ndarray, fraction: float) -> np.ndarray:
    """Return a mask of the test examples: `holdout_size` of each class, or of all, evenly spaced in the file."""
    test = np.zeros(len(values), bool)
    groups = values if values.ndim == 1 else np.zeros(len(values), np.int64)
    found, counts = np.unique(groups, return_counts=True)
    by_group = np.split(np.argsort(groups, kind="stable"), np.cumsum(counts)[:-1])
    for number, members in zip(found.tolist(), by_group, strict=True):
        if len(members) < 2:
            name = f"class {_name(targets, number)}" if values.ndim == 1 else "the file"
            raise DataError(
                f"{path}: {name} has a single example: it takes two, to train and to test; "
                "add one, or the arrays test_images and test_labels"
            )
        test[members[hold_out_evenly(len(members), fraction)]] = True
    return test


def _check_all_are_trained(path: str, targets: Targets) -> None:
    """Raise DataError unless there is an example to train on, of each class if there are classes, and two of these."""
    if targets.values.ndim > 1:
        if not targets.known.any():
            raise DataError(f"{path}: no example to train on has a target: write them into the labels")
        return
    count, found = targets.count, np.unique(targets.values)
    if count < 2:
        raise DataError(f"{path}: all labels are {_name(targets, 0)}: it takes two classes or more to tell apart")
    missing = np.setdiff1d(np.arange(min(count, len(found) + _LISTED)), found)[:_LISTED].tolist()
    if missing:
        more = ", ..." if count - len(found) > len(missing) else ""
        numbered = "" if targets.names else f"labels run up to {count - 1}, but "
        names = ", ".join(_name(targets, number) for number in missing)
        raise DataError(
            f"{path}: {numbered}there is no example to train on of class {names}{more}: "
            + ("number the classes from 0 without gaps, or add examples" if numbered else "add examples")
        )


def _name(targets: Targets, number: int) -> str:
    return targets.names[number] if targets.names else str(number)


# ---- the file ----

_File = TypeVar("_File", bound="NpzFile")


class NpzFile:
    """An opened file. Its methods raise DataError for an array that can't be images or labels.

    Attributes:
        prefixes: By split, the prefix of the names of its arrays.
        checksums: Name and CRC-32 of each array that was read; it covers shape, type and values.
    """

    INPUTS: ClassVar[str] = "images"  # the name of their arrays, after the prefix
    REMEDY: ClassVar[str] = "save fewer images, or give them as files (data=folder)"  # for more than fits in memory

    @classmethod
    @contextmanager
    def opened(cls: type[_File], path: str) -> Iterator[_File]:
        """Raise DataError if data.path names no file, or none of this format."""
        if fault := find_file_fault(Path(path)):
            raise DataError(f"data.path={path} {fault}: give the .npz file that holds {cls.INPUTS} and labels")
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
            raise DataError(
                f"{path} has {self.INPUTS} and train_{self.INPUTS}: save those to train on under one of these names"
            )
        self.prefixes.setdefault("train", "")

    def check_headers(self, prefix: str) -> None:
        """Raise DataError for types and shapes that images and labels of a split can't have."""
        (images, pixel_type), (labels, label_type) = (
            self.read_header(f"{prefix}{name}") for name in ("images", "labels")
        )
        self._check_images(f"{prefix}images", images, pixel_type)
        self.check_labels(f"{prefix}labels", labels, label_type)
        if images[0] != labels[0]:
            raise DataError(
                f"{self._path}: {prefix}images has {images[0]} images, {prefix}labels has {labels[0]} labels: "
                "give one label for each image"
            )

    def read_targets(self, reader: TargetReader) -> dict[str, Targets]:
        """Return the targets of each split."""
        arrays = {f"{prefix}labels": self.read_array(f"{prefix}labels") for prefix in self.prefixes.values()}
        names = []
        if not isinstance(reader, ClassTargets) and self._has_names():
            names = list(map(normal_form, self.read_array("names").tolist()))
        try:
            found = reader.read_arrays(arrays, names)
        except DataError as error:
            raise DataError(f"{self._path}: {error}") from error
        return {split: found[f"{prefix}labels"] for split, prefix in self.prefixes.items()}

    def read_array(self, name: str) -> np.ndarray:
        size, free = self._members[name].file_size, free_bytes()
        if size > free:
            raise DataError(
                f"{self._path}: {name} takes {format_bytes(size)}, {format_bytes(free)} of memory are "
                f"free: {self.REMEDY}"
            )
        with self._stream(name) as stream:
            array = np.lib.format.read_array(stream, allow_pickle=False)
            while stream.read(_CHUNK):  # to the end, where the checksum is compared
                pass
        self.checksums.append(f"{name} {self._members[name].CRC}")
        return array

    def _has_names(self) -> bool:
        """Return whether there are names of labels or numbers, texts [T]."""
        if "names" not in self._members:
            return False
        shape, dtype = self.read_header("names")
        return len(shape) == 1 and dtype.kind == "U"

    def has_array(self, name: str) -> bool:
        return name in self._members

    def _has(self, prefix: str) -> bool:
        return not {f"{prefix}{self.INPUTS}", f"{prefix}labels"}.isdisjoint(self._members)

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

    def check_labels(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        """Raise DataError for a type and shape that labels can't have."""
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

    def read_header(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Return shape and dtype of an array."""
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
class PixelRange:
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


def find_white(file: str, arrays: Sequence[PixelRange], scale: int | str) -> tuple[int, list[str]]:
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


def _describe(pixels: PixelRange, white: int) -> str:
    note = f"{pixels.name} is {pixels.dtype} with a maximum of {pixels.high}: taken as 0..{white}"
    return note if pixels.low >= 0 and pixels.high <= white else f"{note}, values beyond that are cut off"
