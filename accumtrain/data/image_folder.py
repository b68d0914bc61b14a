"""A directory of class folders with PNG and JPEG files. The sorted folder names are the classes."""

from __future__ import annotations

import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tensorflow as tf

from accumtrain.data.encoded import EncodedSplit
from accumtrain.data.images import decode
from accumtrain.data.source import Source
from accumtrain.errors import DataError
from accumtrain.kinds.sources import FolderConfig

_SUFFIXES = (".png", ".jpg", ".jpeg")
_SIGNATURES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")
_CHANNELS = 3
_NAMED = 5  # files named in a message


@dataclass
class _Listing:
    """The image files of each class, sorted by name, and all other files."""

    classes: dict[str, list[Path]] = field(default_factory=dict)
    ignored: list[Path] = field(default_factory=list)


class FolderSplit(EncodedSplit):
    """Image files, each with a label."""

    def __init__(self, files: list[Path], labels: list[int], image_shape: tuple[int, int, int] | None) -> None:
        super().__init__(len(files), image_shape, _CHANNELS)
        self.files = files
        self._paths = np.array([str(file) for file in files])
        with tf.device("CPU"):
            self._path_tensor = tf.constant(self._paths, tf.string)
            self._labels = tf.constant(labels, tf.int32)

    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        index = tf.ensure_shape(tf.numpy_function(self._remember, [index], tf.int64), [None])
        return tf.gather(self._path_tensor, index), tf.gather(self._labels, index)

    def load(self, item: tf.Tensor) -> tf.Tensor:
        return tf.io.read_file(item)

    def encoded(self, index: int) -> bytes:
        try:
            return self.files[index].read_bytes()
        except OSError as error:
            raise DataError(f"{self.files[index]} can't be read any more: {error.strerror}") from error

    def name(self, index: int) -> str:
        return str(self.files[index])

    def _remember(self, index: np.ndarray) -> np.ndarray:
        self.remember(index)
        return index


def open_folder(config: FolderConfig, seed: int) -> Source:
    """The images of a folder, and a note of what was ignored.

    Raises:
        DataError: The folder has another structure, or a file is not an image.
    """
    root = Path(config.path).expanduser()
    if not root.is_dir():
        raise DataError(f"data.path={config.path} is not a directory: give the folder that holds the class folders")
    if (root / "train").is_dir():
        held_out = _test_folder(root)
        train, test = _list_classes(root / "train"), _list_classes(held_out)
        if train.classes.keys() != test.classes.keys():
            odd = sorted(train.classes.keys() ^ test.classes.keys())
            raise DataError(f"{root}: train/ and {held_out.name}/ must have the same class folders; only one has {odd}")
    else:
        train, test = _hold_out(_list_classes(root), config.test_fraction)
    ignored = train.ignored + test.ignored
    _check_signatures([file for listing in (train, test) for files in listing.classes.values() for file in files])
    shape = None if config.image_size else _first_shape(train)
    notes = [f"ignored {_files(ignored)} not named as PNG or JPEG: {_names(ignored)}"] if ignored else []
    return Source(_split(train, shape), _split(test, shape), len(train.classes), notes)


def _test_folder(root: Path) -> Path:
    for name in ("test", "val"):
        if (root / name).is_dir():
            return root / name
    raise DataError(f"{root} has train/ but neither test/ nor val/: add one, or give data.path={root / 'train'}")


def _list_classes(folder: Path) -> _Listing:
    listing = _Listing()
    for entry in _visible(folder):
        if not entry.is_dir():
            listing.ignored.append(entry)
            continue
        inside = _visible(entry)
        files = [file for file in inside if file.suffix.lower() in _SUFFIXES]
        listing.ignored += [file for file in inside if file.suffix.lower() not in _SUFFIXES]
        if not files:
            raise DataError(f"class folder {entry} holds no PNG or JPEG file: add some, or remove the folder")
        listing.classes[entry.name] = files
    if len(listing.classes) < 2:
        raise DataError(f"{folder} has {len(listing.classes)} class folder(s): it takes two or more to tell apart")
    return listing


def _visible(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def _hold_out(listing: _Listing, fraction: float) -> tuple[_Listing, _Listing]:
    """Splits into training and test files. Of a class of n files, round(n * fraction) but at least one are for testing.

    These are the ones whose names have the smallest CRC-32, so the split is the same on every machine and for every
    seed.
    """
    train, test = _Listing(ignored=listing.ignored), _Listing()
    for name, files in listing.classes.items():
        if len(files) < 2:
            raise DataError(f"class {name} has a single image, {files[0]}: it takes two to train and to test")
        held = min(max(round(len(files) * fraction), 1), len(files) - 1)
        by_hash = sorted(files, key=lambda file: (zlib.crc32(file.name.encode()), file.name))
        test.classes[name], train.classes[name] = sorted(by_hash[:held]), sorted(by_hash[held:])
    return train, test


def _check_signatures(files: list[Path]) -> None:
    def is_image(file: Path) -> bool:
        with file.open("rb") as stream:
            return stream.read(8).startswith(_SIGNATURES)

    with ThreadPoolExecutor(16) as pool:
        bad = [file for file, good in zip(files, pool.map(is_image, files), strict=True) if not good]
    if bad:
        raise DataError(
            f"{_files(bad)} named as an image but no PNG or JPEG inside: {_names(bad)}; replace or remove them"
        )


def _first_shape(listing: _Listing) -> tuple[int, int, int]:
    """The shape that all images must have. Raises DataError if the first one can't be decoded."""
    first = FolderSplit([next(iter(listing.classes.values()))[0]], [0], None)
    first.inspect(0)
    return tuple(decode(tf.constant(first.encoded(0)), _CHANNELS).shape)


def _split(listing: _Listing, shape: tuple[int, int, int] | None) -> FolderSplit:
    files, labels = [], []
    for label, members in enumerate(listing.classes.values()):
        files += members
        labels += [label] * len(members)
    return FolderSplit(files, labels, shape)


def _files(files: list[Path]) -> str:
    return "1 file" if len(files) == 1 else f"{len(files)} files"


def _names(files: list[Path]) -> str:
    return ", ".join(str(file) for file in files[:_NAMED]) + (", ..." if len(files) > _NAMED else "")
