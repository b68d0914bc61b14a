"""Image files of classes, and those of no class: their bytes, and which side of them is up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import tensorflow as tf

from accumtrain.data.bad_example import UnreadableExample
from accumtrain.data.class_folders import list_splits
from accumtrain.data.encoded import EncodedSplit
from accumtrain.data.fingerprint import digest
from accumtrain.data.image_header import UPRIGHT, Header, fault_of_image, unusual_headers
from accumtrain.data.listing import Listing, counted, readable, told
from accumtrain.data.local_files import size_of_file
from accumtrain.data.source import Source
from accumtrain.errors import DataError
from accumtrain.kinds.sources import DataConfig, FolderConfig

_CHANNELS = 3
_NAMED = 5  # files named in a message


class FolderSplit(EncodedSplit):
    """Image files, each with a label. Those with a fault are never opened.

    Args:
        unusual: the headers of the files that have a fault, are not upright, or lose something in decoding.
    """

    def __init__(
        self, files: Sequence[Path], labels: list[int], unusual: Mapping[Path, Header], config: DataConfig
    ) -> None:
        super().__init__(len(files), None, _CHANNELS, config)
        self.files, self.labels, self.known_labels = files, labels, np.asarray(labels)
        headers = [unusual.get(file, Header()) for file in files]
        turned = any(header.orientation != UPRIGHT for header in headers)
        with tf.device("CPU"):
            paths = ["" if header.fault else str(file) for file, header in zip(files, headers, strict=True)]
            self._paths = tf.constant(paths, tf.string)
            self._labels = tf.constant(labels, tf.int32)
            self._orientations = tf.constant([header.orientation for header in headers]) if turned else None
        if self.skips:
            for index, header in enumerate(headers):
                if header.fault:
                    self._skipped[index] = UnreadableExample(str(files[index]), header.fault, self.undecodable)

    @cached_property
    def sizes(self) -> list[int]:
        """The bytes of each file; -1 for one that is not there."""
        return [size_of_file(file) for file in self.files]

    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        index = tf.ensure_shape(tf.numpy_function(self._remember, [index], tf.int64), [None])
        return tf.gather(self._paths, index), tf.gather(self._labels, index)

    def load(self, item: tf.Tensor) -> tf.Tensor:
        return tf.io.read_file(item)

    def orientation(self, index: tf.Tensor) -> tf.Tensor | None:
        return None if self._orientations is None else tf.gather(self._orientations, index)

    def stored(self, index: int) -> tuple[bytes, int]:
        file = self.files[index]
        if fault := fault_of_image(file):
            raise UnreadableExample(str(file), fault, self.undecodable)
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
    """The images of a folder, and notes of what was ignored, turned, or lost in decoding.

    Raises:
        DataError: The folder can't be read or has another structure, or a file is not an image.
    """
    with readable():
        listings, notes = list_splits(config)
    return source_of(listings, notes, config)


def source_of(listings: dict[str, Listing], notes: list[str], config: DataConfig) -> Source:
    """A source of image files.

    Args:
        listings: the images of train, and of val or test or both, all with the same classes.
        notes: what the user should know of them.

    Raises:
        DataError: A file is not an image.
    """
    unusual = _usable_headers([file for listing in listings.values() for file in _files_of(listing)], config)
    splits = {name: _split(listing, unusual, config) for name, listing in listings.items()}
    if config.image_size is None:
        shape = splits["train"].inspect_first().shape
        for split in splits.values():
            split.image_shape = shape
    return Source(
        splits["train"],
        splits.get("test"),
        num_classes=len(listings["train"]),
        notes=[*notes, *notes_of(unusual)],
        class_names=list(listings["train"]),
        val=splits.get("val"),
        fingerprint={f"data.{name}.files": _digest(listing, splits[name].sizes) for name, listing in listings.items()},
    )


def source_of_all(listing: Listing, notes: list[str], config: DataConfig) -> Source:
    """A source whose only split has all images of a listing. Raises what `source_of` raises."""
    unusual = _usable_headers(_files_of(listing), config)
    split = _split(listing, unusual, config)
    return Source(split, None, len(listing), [*notes, *notes_of(unusual)], class_names=list(listing))


def _usable_headers(files: Sequence[Path], config: DataConfig) -> dict[Path, Header]:
    """As `unusual_headers`. Raises DataError if files can't be used that may not be left out."""
    unusual = unusual_headers(files)
    bad = [f"{file} {header.fault}" for file, header in unusual.items() if header.fault]
    if bad and config.on_error == "raise":
        raise DataError(
            f"{counted(bad)} named as an image can't be used: {'; '.join(bad[:_NAMED])}"
            f"{'; ...' if len(bad) > _NAMED else ''}: "
            "replace or remove them, or set data.on_error=skip to go on without them"
        )
    return unusual


def _split(listing: Listing, unusual: Mapping[Path, Header], config: DataConfig) -> FolderSplit:
    labels = [label for label, images in enumerate(listing.values()) for _ in images]
    return FolderSplit(_files_of(listing), labels, unusual, config)


def _files_of(listing: Listing) -> list[Path]:
    return [each.file for images in listing.values() for each in images]


def _digest(listing: Listing, sizes: Sequence[int]) -> str:
    """A hash of the names of all files, beginning with their classes, and of their sizes."""
    names = (f"{kind}/{each.name}" for kind, images in listing.items() for each in images)
    return digest(f"{name} {size}" for name, size in zip(names, sizes, strict=True))


def notes_of(unusual: Mapping[Path, Header]) -> list[str]:
    """What the user should know of the images that are used: which are turned, and which lose something."""
    turned = [file for file, header in unusual.items() if header.orientation != UPRIGHT]
    notes = [f"turned upright, as their EXIF orientation says: {told(turned)}"] if turned else []
    for loss in sorted({header.loss for header in unusual.values() if header.loss}):
        notes.append(f"{loss}: {told([file for file, header in unusual.items() if header.loss == loss])}")
    return notes
