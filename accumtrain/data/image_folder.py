"""A directory of class folders with PNG and JPEG files. The sorted folder names are the classes."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tensorflow as tf

from accumtrain.data.bad_example import UnreadableExample
from accumtrain.data.encoded import EncodedSplit
from accumtrain.data.fingerprint import digest
from accumtrain.data.images import JPEG, PNG
from accumtrain.data.local_files import IMAGE_SUFFIXES, check_name, fault_of
from accumtrain.data.part import held_out_of
from accumtrain.data.source import Source
from accumtrain.errors import DataError
from accumtrain.kinds.sources import FolderConfig

_FOLDERS = {"val": ("val", "valid", "validation"), "test": ("test",)}
_CHANNELS = 3
_NAMED = 5  # files named in a message


@dataclass
class _Listing:
    """The image files of each class, sorted by name, and all other files."""

    classes: dict[str, list[Path]] = field(default_factory=dict)
    ignored: list[Path] = field(default_factory=list)

    @property
    def files(self) -> list[Path]:
        return [file for files in self.classes.values() for file in files]

    @property
    def labels(self) -> list[int]:
        return [label for label, files in enumerate(self.classes.values()) for _ in files]

    @property
    def names(self) -> list[str]:
        """The names of the files, each with its class."""
        return [f"{name}/{file.name}" for name, files in self.classes.items() for file in files]


class FolderSplit(EncodedSplit):
    """Image files, each with a label. Those in `bad` are never opened."""

    def __init__(self, files: list[Path], labels: list[int], bad: Mapping[Path, str], config: FolderConfig) -> None:
        super().__init__(len(files), None, _CHANNELS, config)
        self.files, self.labels, self.known_labels = files, labels, np.asarray(labels)
        with tf.device("CPU"):
            self._paths = tf.constant(["" if file in bad else str(file) for file in files], tf.string)
            self._labels = tf.constant(labels, tf.int32)

    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        index = tf.ensure_shape(tf.numpy_function(self._remember, [index], tf.int64), [None])
        return tf.gather(self._paths, index), tf.gather(self._labels, index)

    def load(self, item: tf.Tensor) -> tf.Tensor:
        return tf.io.read_file(item)

    def stored(self, index: int) -> tuple[bytes, int]:
        file = self.files[index]
        if fault := _fault_of_image(file):
            raise UnreadableExample(str(file), fault)
        try:
            return file.read_bytes(), self.labels[index]
        except OSError as error:
            raise UnreadableExample(str(file), f"can't be read: {error.strerror}") from error

    def name(self, index: int) -> str:
        return str(self.files[index])

    def _remember(self, index: np.ndarray) -> np.ndarray:
        self.remember(index)
        return index


def open_folder(config: FolderConfig, seed: int) -> Source:
    """The images of a folder, and a note of what was ignored.

    Raises:
        DataError: The folder can't be read or has another structure, or a file is not an image.
    """
    try:
        listings = _list_splits(config)
    except OSError as error:
        raise DataError(f"{error.filename} can't be read: {error.strerror}; give yourself the permission") from error
    ignored = [file for each in listings.values() for file in each.ignored]
    bad = bad_files([file for each in listings.values() for file in each.files])
    if bad and config.on_error == "raise":
        raise DataError(
            f"{_files(list(bad))} named as an image can't be used: {_names([f'{file} {bad[file]}' for file in bad])}; "
            "replace or remove them, or set data.on_error=skip to go on without them"
        )
    splits = {name: FolderSplit(each.files, each.labels, bad, config) for name, each in listings.items()}
    if config.image_size is None:
        shape = splits["train"].inspect_first().shape
        for split in splits.values():
            split.image_shape = shape
    return Source(
        splits["train"],
        splits.get("test"),
        num_classes=len(listings["train"].classes),
        notes=[f"ignored {_files(ignored)} not named as PNG or JPEG: {_names(ignored)}"] if ignored else [],
        class_names=list(listings["train"].classes),
        val=splits.get("val"),
        fingerprint={f"data.{name}.names": digest(each.names) for name, each in listings.items()},
    )


def _list_splits(config: FolderConfig) -> dict[str, _Listing]:
    """The files of train, and of val or test or both."""
    root = Path(config.path).expanduser()
    if not root.is_dir():
        raise DataError(f"data.path={config.path} is not a directory: give the folder that holds the class folders")
    if (root / "train").is_dir():
        folders = _split_folders(root)
        listings = {name: _list_classes(folder) for name, folder in folders.items()}
        for name, folder in folders.items():
            if odd := sorted(listings["train"].classes.keys() ^ listings[name].classes.keys()):
                raise DataError(
                    f"{root}: train/ and {folder.name}/ must have the same class folders; only one has {odd}"
                )
        return listings
    return _hold_out(_list_classes(root), config.test_fraction)


def _split_folders(root: Path) -> dict[str, Path]:
    folders = {"train": root / "train"}
    for split, names in _FOLDERS.items():
        found = [root / name for name in names if (root / name).is_dir()]
        if len(found) > 1:
            raise DataError(f"{root} has {' and '.join(f'{each.name}/' for each in found)}: keep one of them")
        if found:
            folders[split] = found[0]
    if len(folders) == 1:
        raise DataError(f"{root} has train/ but neither test/ nor val/: add one, or give data.path={root / 'train'}")
    return folders


def _list_classes(folder: Path) -> _Listing:
    listing = _Listing()
    for entry in _visible(folder):
        if not entry.is_dir():
            listing.ignored.append(entry)
            continue
        inside = _visible(entry)
        files = [file for file in inside if file.suffix.lower() in IMAGE_SUFFIXES]
        listing.ignored += [file for file in inside if file.suffix.lower() not in IMAGE_SUFFIXES]
        if not files:
            raise DataError(f"class folder {entry} holds no PNG or JPEG file: add some, or remove the folder")
        listing.classes[entry.name] = files
    if len(listing.classes) < 2:
        raise DataError(f"{folder} has {len(listing.classes)} class folder(s): it takes two or more to tell apart")
    return listing


def _visible(folder: Path) -> list[Path]:
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    for entry in entries:
        check_name(entry)
    return entries


def _hold_out(listing: _Listing, fraction: float) -> dict[str, _Listing]:
    """Splits into training and test files. Of a class of n files, round(n * fraction) but at least one are for testing.

    These are the ones whose names have the smallest CRC-32, so the split is the same on every machine and for every
    seed.
    """
    train, test = _Listing(ignored=listing.ignored), _Listing()
    for name, files in listing.classes.items():
        if len(files) < 2:
            raise DataError(f"class {name} has a single image, {files[0]}: it takes two to train and to test")
        held = held_out_of(len(files), fraction)
        by_hash = sorted(files, key=lambda file: (zlib.crc32(file.name.encode()), file.name))
        test.classes[name], train.classes[name] = sorted(by_hash[:held]), sorted(by_hash[held:])
    return {"train": train, "test": test}


def bad_files(files: list[Path]) -> dict[Path, str]:
    """What is wrong with the files that are no images, as far as their first bytes tell."""
    with ThreadPoolExecutor(16) as pool:
        faults = zip(files, pool.map(_fault_of_image, files), strict=True)
    return {file: fault for file, fault in faults if fault is not None}


def _fault_of_image(file: Path) -> str | None:
    if fault := fault_of(file):
        return fault
    try:
        with file.open("rb") as stream:
            known = stream.read(len(PNG)).startswith((PNG, JPEG))
    except OSError as error:
        return f"can't be read: {error.strerror}"
    return None if known else "has no PNG or JPEG inside"


def _files(files: Sequence[object]) -> str:
    return "1 file" if len(files) == 1 else f"{len(files)} files"


def _names(files: Sequence[object]) -> str:
    return ", ".join(str(file) for file in files[:_NAMED]) + (", ..." if len(files) > _NAMED else "")
