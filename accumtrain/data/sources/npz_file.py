"""The arrays of a NumPy .npz file. Types and shapes are looked at before values are read, which may take all memory."""

from __future__ import annotations

import lzma
import math
import sys
import textwrap
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from accumtrain.console import format_bytes
from accumtrain.data.local_files import find_file_fault
from accumtrain.data.targets.base import TargetReader, Targets
from accumtrain.data.targets.classes import ClassTargets
from accumtrain.errors import DataError
from accumtrain.fields import normal_form
from accumtrain.process.machine import spare_bytes

IMAGES, TOKENS = "images", "tokens"
_REMEDIES = {  # for more than fits in memory
    IMAGES: "save fewer images, or give them as files (data=folder)",
    TOKENS: "save fewer rows, or whole numbers of fewer bits",
}
_TEXTS = "US"  # kinds of dtypes
_SPLITS = {"": "train", "train_": "train", "val_": "val", "test_": "test"}  # by the prefix of their arrays' names
_COPIES = 2  # of an array: its splits take as much as the whole
_LONGEST_HEADER = 1024  # bytes; that of plain numbers or texts takes some 100
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_CHUNK = 2**20  # bytes
# zipfile and NumPy raise these for content that is damaged, encrypted, of another method, or larger than the file says.
UNREADABLE = (
    *(ValueError, EOFError, OSError, RuntimeError, NotImplementedError, MemoryError, TypeError, SyntaxError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, tokenize.TokenError),
)


class NpzFile:
    """An opened file. Its methods raise DataError for an array that can't be inputs or labels.

    Attributes:
        inputs: The name of the arrays of inputs, after the prefix: images or tokens.
        prefixes: By split, the prefix of the names of its arrays.
        checksums: Name and CRC-32 of each array that was read; it covers shape, type and values.
    """

    @classmethod
    @contextmanager
    def opened(cls, path: str) -> Iterator[NpzFile]:
        """Raise DataError if data.path names no file, or none of this format."""
        if fault := find_file_fault(Path(path)):
            raise DataError(f"data.path={path} {fault}: give the .npz file that holds images and labels, or tokens")
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
        self.path = path
        self._packed = packed
        self._members = {info.filename.removesuffix(".npy"): info for info in packed.infolist()}
        found = {f"{prefix}{inputs}" for prefix in _SPLITS for inputs in (IMAGES, TOKENS)} & self._members.keys()
        kinds = {name.rpartition("_")[2] for name in found}
        if len(kinds) > 1:
            raise DataError(f"{path} has {' and '.join(sorted(found))}: save images or tokens, in a file of their own")
        self.inputs = kinds.pop() if kinds else IMAGES
        self.prefixes = {split: prefix for prefix, split in _SPLITS.items() if self._has(prefix)}
        if self._has("") and self._has("train_"):
            raise DataError(
                f"{path} has {self.inputs} and train_{self.inputs}: save those to train on under one of these names"
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
                f"{self.path}: {prefix}images has {images[0]} images, {prefix}labels has {labels[0]} labels: "
                "give one label for each image"
            )

    def check_masks(self, prefix: str) -> None:
        """Raise DataError for types and shapes that images and masks of a split can't have."""
        (images, pixel_type), (masks, mask_type) = (self.read_header(f"{prefix}{name}") for name in ("images", "masks"))
        self._check_images(f"{prefix}images", images, pixel_type)
        if mask_type.kind not in "biuf" or masks not in (images[:3], (*images[:3], 1)):
            raise DataError(
                f"{self.path}: {prefix}masks is {mask_type} {list(masks)}, and {prefix}images is {list(images)}: give "
                f"whole numbers {list(images[:3])}, a class for each pixel"
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
            raise DataError(f"{self.path}: {error}") from error
        return {split: found[f"{prefix}labels"] for split, prefix in self.prefixes.items()}

    def read_array(self, name: str, bytes_of_value: int | None = None) -> np.ndarray:
        """Return an array.

        Args:
            bytes_of_value: Those that all that is made of a value takes. None: those of the array and of a copy.
        """
        shape, _ = self.read_header(name)
        own = _COPIES * self._members[name].file_size
        size = own if bytes_of_value is None else math.prod(shape) * bytes_of_value
        if size > (spare := spare_bytes()):
            raise DataError(
                f"{self.path}: {name} takes {format_bytes(size)}, {format_bytes(spare)} of memory are "
                f"free: {_REMEDIES[self.inputs]}"
            )
        with self._stream(name) as stream:
            array = np.lib.format.read_array(stream, allow_pickle=False)
            while stream.read(_CHUNK):  # to the end, where the checksum is compared
                pass
            if array.dtype.kind == "U":
                _check_characters(array)
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
        return not {f"{prefix}{self.inputs}", f"{prefix}labels"}.isdisjoint(self._members)

    def _check_images(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        if dtype.kind not in "iuf":
            raise DataError(f"{self.path}: {name} is of type {dtype}: pixels must be integers or floats")
        if len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] not in (1, 3)):
            raise DataError(
                f"{self.path}: {name} has the shape {list(shape)}: "
                "give [N, height, width] or [N, height, width, channels] with 1 or 3 channels"
            )
        if min(shape) < 1:
            raise DataError(f"{self.path}: {name} has the shape {list(shape)}: give at least one image, and one pixel")

    def check_labels(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
        """Raise DataError for a type and shape that labels can't have."""
        if dtype.kind not in "biuf" + _TEXTS:
            raise DataError(
                f"{self.path}: {name} is of type {dtype}: save whole numbers by labels.astype('int64'), or the names "
                "of classes by labels.astype(str)"
            )
        rows = len(shape) == 2 and shape[1] > 0
        if not (len(shape) == 1 or (rows and (shape[1] == 1 or dtype.kind not in _TEXTS))):
            raise DataError(
                f"{self.path}: {name} has the shape {list(shape)}: give [N], a class for each image, or one-hot rows "
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
            raise DataError(f"{self.path} has no array {name}: it has {names}; save it under that name")
        try:
            with self._packed.open(self._members[name]) as stream:
                yield stream
        except UNREADABLE as error:
            reason = textwrap.shorten(str(error), 200)
            raise DataError(
                f"{self.path}: {name} can't be read ({reason}): save it again, as an array of numbers, or of texts by "
                ".astype(str)"
            ) from error


def _check_characters(texts: np.ndarray) -> None:
    """Raise ValueError for texts with numbers of no character, of which Python makes none."""
    codes = np.frombuffer(texts.tobytes(), np.dtype(np.uint32).newbyteorder(texts.dtype.byteorder))
    wrong = codes[(codes > sys.maxunicode) | ((codes >= 0xD800) & (codes < 0xE000))]
    if len(wrong):
        raise ValueError(f"a text holds {wrong[0]:#x}, which is no character")
