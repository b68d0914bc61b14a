"""A NumPy .npz file of images and labels: types and shapes are looked at before values are read."""

from __future__ import annotations

import lzma
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
from accumtrain.data.local_files import fault_of
from accumtrain.errors import DataError
from accumtrain.process.free_memory import free_bytes

TEXTS = "US"  # kinds of dtypes
_SPLITS = {"": "train", "train_": "train", "val_": "val", "test_": "test"}  # by the prefix of their arrays' names
_LONGEST_HEADER = 1024  # bytes; that of plain numbers or texts takes some 100
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_CHUNK = 2**20  # bytes
# What zipfile and NumPy raise for content that is damaged, encrypted, of another method, or larger than the file says.
_UNREADABLE = (
    *(ValueError, EOFError, OSError, RuntimeError, NotImplementedError, MemoryError, TypeError, SyntaxError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, tokenize.TokenError),
)


class NpzFile:
    """An opened file. Its methods raise DataError for what is no array of images or labels.

    Attributes:
        prefixes: That of the names of each split's arrays, by split.
        checksums: Name and CRC-32 of each array that was read; it covers shape, type and values.
    """

    @classmethod
    @contextmanager
    def opened(cls, path: str) -> Iterator[NpzFile]:
        """Raises DataError if data.path names no file, or none of this format."""
        if fault := fault_of(Path(path)):
            raise DataError(f"data.path={path} {fault}: give the .npz file that holds images and labels")
        try:
            packed = zipfile.ZipFile(path)
        except OSError as error:
            raise DataError(f"data.path={path} can't be read: {error.strerror}") from error
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise DataError(
                f"data.path={path} is no .npz file, or a truncated one: write it with numpy.savez"
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
        """Looks at types and shapes of the images and labels of a split."""
        (images, pixel_type), (labels, label_type) = (self._header(f"{prefix}{name}") for name in ("images", "labels"))
        self._check_images(f"{prefix}images", images, pixel_type)
        self._check_labels(f"{prefix}labels", labels, label_type)
        if images[0] != labels[0]:
            raise DataError(
                f"{self._path}: {prefix}images has {images[0]} images, {prefix}labels has {labels[0]} labels: "
                "give one label for each image"
            )

    def array(self, name: str) -> np.ndarray:
        """All values of an array."""
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
        if dtype.kind not in "biuf" + TEXTS:
            raise DataError(
                f"{self._path}: {name} is of type {dtype}: save whole numbers by labels.astype('int64'), or the names "
                "of classes by labels.astype(str)"
            )
        rows = len(shape) == 2 and shape[1] > 0
        if not (len(shape) == 1 or (rows and (shape[1] == 1 or dtype.kind not in TEXTS))):
            raise DataError(
                f"{self._path}: {name} has the shape {list(shape)}: give [N], a class for each image, or one-hot rows "
                "[N, classes]"
            )

    def _header(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        """Shape and dtype of an array."""
        with self._stream(name) as stream:
            version = np.lib.format.read_magic(stream)
            if version not in _HEADERS:
                raise ValueError(f"version {version} of the format is for structures with names")
            shape, _, dtype = _HEADERS[version](stream, max_header_size=_LONGEST_HEADER)
        return shape, dtype

    @contextmanager
    def _stream(self, name: str) -> Iterator[IO[bytes]]:
        """The bytes of an array. What can't be read of them in this context is a DataError."""
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
