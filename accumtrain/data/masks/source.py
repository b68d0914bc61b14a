"""The sources of images with masks: a folder of files, or arrays. Every mask is read once when they are opened."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.console import format_things
from accumtrain.data.config import DataConfig, FolderConfig, NpzConfig
from accumtrain.data.holdout import hold_out_evenly, holdout_size
from accumtrain.data.images.encoded import StoredExample
from accumtrain.data.images.header import Header, read_unusual_headers
from accumtrain.data.images.tiles import IMAGE, MASK
from accumtrain.data.inputs.scenes import make_scenes, read_sizes
from accumtrain.data.local_files import get_file_size, list_first, readable
from accumtrain.data.masks.config import MOST
from accumtrain.data.masks.pairs import MaskedPair, Pairs, find_pairs
from accumtrain.data.masks.values import (
    SHOWN,
    BadMask,
    MaskValues,
    choose_values,
    count_values,
    read_mask,
)
from accumtrain.data.source import BadExample, Source, Split, UnreadableExample, Wanted, hash_texts
from accumtrain.data.sources.folder import FolderSplit
from accumtrain.data.sources.npz import read_images
from accumtrain.data.sources.npz_file import NpzFile
from accumtrain.errors import DataError
from accumtrain.progress import counting

FEWEST = 2  # images, to train and to test
_LISTED = 5  # faults in a message


# ---- files ----


@dataclass(frozen=True)
class FoundMask:
    """A mask that was read: its number of pixels of each value, its height and width, and its fault if it has one."""

    values: Counter[int]
    size: tuple[int, int] = (0, 0)
    fault: BadMask | None = None


def open_masked_folder(config: FolderConfig, wanted: Wanted) -> Source:
    """Return the images with masks of a folder. For a trained run they are one split, whatever folder they are in.

    Raises:
        DataError: there are none, the folder can't be read, or an image or mask can't be used.
    """
    root = Path(config.path)
    if not root.is_dir():
        raise DataError(f"data.path={config.path} is not a directory: give the folder of the images and masks")
    with readable():
        found = find_pairs(root)
    if wanted.of_run is not None:
        joined = Pairs([pair for each in found.values() for pair in each.pairs])
        for each in found.values():
            joined.unpaired |= each.unpaired
        found = {"train": joined}
    return _open_pairs(config, wanted, found)


def _open_pairs(config: FolderConfig, wanted: Wanted, found: Mapping[str, Pairs]) -> Source:
    skips = config.on_error == "skip"
    left_out = {name: _list_unpaired(pairs, skips=skips) for name, pairs in found.items()}
    pairs = {name: each.pairs for name, each in found.items()}
    if len(pairs) == 1 and wanted.of_run is None:
        pairs = _hold_out_by_name(pairs["train"], config.test_fraction)
    every = [pair for each in pairs.values() for pair in each]
    masks = dict(zip(every, _read_masks([pair.mask for pair in every]), strict=True))
    unusual = read_unusual_headers([pair.image for pair in every])
    splits = {name: MaskedFiles(each, masks, unusual, config) for name, each in pairs.items()}
    for name, split in splits.items():
        split.leave_out_faults(unusual)
        split.left_out = left_out.get(name, [])
    total = sum((mask.values for split in splits.values() for mask in split.usable.values()), Counter())
    values = choose_values(config, total, None if wanted.of_run is None else wanted.of_run.class_names)
    for split in splits.values():
        split.number(values)
    notes = _note_counts(splits, values)
    if faults := [bad.fault for each in left_out.values() for bad in each]:
        notes.append(f"left out: {list_first(faults)}")
    digests = {f"data.{name}.files": split.digest for name, split in splits.items()}
    return _make_source(splits, values, config, notes, digests)


def _list_unpaired(pairs: Pairs, *, skips: bool) -> list[BadExample]:
    """Return the files without a partner. Raise DataError unless these may be left out."""
    bad: list[BadExample] = [
        UnreadableExample(file, fault, "give each image a single mask of its name, or move the file away")
        for file, fault in pairs.unpaired.items()
    ]
    if bad and not skips:
        raise _refuse(bad)
    return bad


def _refuse(bad: Sequence[BadExample]) -> DataError:
    """Return the error of files that can't be used: the first of them, and all remedies."""
    more = f"; {len(bad) - _LISTED:,} more" if len(bad) > _LISTED else ""
    faults = "; ".join(example.fault for example in bad[:_LISTED])
    remedies = "; ".join(dict.fromkeys(example.remedy for example in bad))
    return DataError(f"{faults}{more}: {remedies}, or set data.on_error=skip to go on without them")


def _hold_out_by_name(pairs: Sequence[MaskedPair], fraction: float) -> dict[str, list[MaskedPair]]:
    """Return the pairs to train and to test on, whose names have the smallest CRC-32."""
    _check_number(len(pairs))
    by_hash = sorted(pairs, key=lambda pair: (zlib.crc32(pair.name.encode()), pair.name))
    held = holdout_size(len(pairs), fraction)
    parts = {"train": by_hash[held:], "test": by_hash[:held]}
    return {part: sorted(some, key=lambda pair: pair.name) for part, some in parts.items()}


def _check_number(images: int) -> None:
    """Raise DataError for fewer images than it takes to train and to test."""
    if images < FEWEST:
        counted = format_things(images, "image")
        raise DataError(f"{counted} with a mask: it takes two, to train and to test; add some")


def _read_masks(files: Sequence[Path]) -> list[FoundMask]:
    """Return the content of each mask in short."""

    def read(file: Path) -> FoundMask:
        try:
            values = read_mask(file.read_bytes())
        except OSError as error:
            return FoundMask(Counter(), fault=BadMask(f"can't be read: {error.strerror}", "replace or remove it"))
        except BadMask as bad:
            return FoundMask(Counter(), fault=bad)
        return FoundMask(count_values(values), values.shape)

    with counting("reading masks", len(files)) as report, ThreadPoolExecutor() as pool:
        found = []
        for mask in pool.map(read, files):
            found.append(mask)
            report(1)
        return found


class MaskedFiles(FolderSplit):
    """Image files, each with a mask. One that is left out has no pixels.

    Args:
        masks: the content of the masks in short.
        unusual: the headers of the images that have a fault, are not upright, or lose something in decoding.
    """

    pixels: np.ndarray
    position_counts: np.ndarray

    def __init__(
        self,
        pairs: Sequence[MaskedPair],
        masks: Mapping[MaskedPair, FoundMask],
        unusual: Mapping[Path, Header],
        config: DataConfig,
    ) -> None:
        numbers = np.arange(len(pairs), dtype=np.int32)
        super().__init__([pair.image for pair in pairs], numbers, unusual, config)
        self.known_labels = None
        self._pairs, self._found = pairs, [masks[pair] for pair in pairs]
        self.masks = [pair.mask for pair in pairs]
        self.pixels = np.array([masks[pair].size for pair in pairs], np.int64).reshape(-1, 2)
        with tf.device("CPU"):
            self._paths = tf.constant([str(file) for file in self.masks], tf.string)

    @property
    def digest(self) -> str:
        """A hash of the names and sizes of all images and masks."""
        sizes = ((pair.name, get_file_size(pair.image), get_file_size(pair.mask)) for pair in self._pairs)
        return hash_texts(" ".join(map(str, each)) for each in sizes)

    @property
    def usable(self) -> dict[int, FoundMask]:
        """The masks that are not left out, by their index."""
        return {index: mask for index, mask in enumerate(self._found) if index not in self._skipped}

    def leave_out_faults(self, unusual: Mapping[Path, Header]) -> None:
        """Leave out what can't be read, and masks of another size. Raise DataError if that is not allowed.

        Args:
            unusual: the headers of the images that have a fault, or another of the odds of `read_unusual_headers`.
        """
        sizes, bad = read_sizes(self), dict[int, BadExample]()
        for index, mask in self.usable.items():
            if index in self._faulty:
                file = self.files[index]
                bad[index] = UnreadableExample(str(file), str(unusual[file].fault), self.undecodable)
            elif fault := mask.fault or _compare_sizes(mask.size, tuple(sizes[index].tolist())):
                bad[index] = self._as_example(index, fault)
        self._leave_out(bad)

    def number(self, values: MaskValues) -> None:
        """Take the classes of values. A mask with a value that has none is a fault as others are."""
        self._values = values
        found = {index: values.find_fault(mask.values) for index, mask in self.usable.items()}
        self._leave_out({index: self._as_example(index, fault) for index, fault in found.items() if fault})
        self.pixels[[*self._skipped]] = 0
        counts = np.zeros([self.size, values.count], np.int64)
        for index, mask in self.usable.items():
            counts[index] = values.count_classes(mask.values)
        self.position_counts = counts

    def _as_example(self, index: int, fault: BadMask) -> BadExample:
        return UnreadableExample(str(self.masks[index]), fault.fault, fault.remedy)

    def _leave_out(self, bad: Mapping[int, BadExample]) -> None:
        """Leave out examples. Raise DataError if these may not be left out."""
        if bad and not self.skips:
            raise _refuse([*bad.values()])
        for index, example in bad.items():
            self.leave_out(index, example)

    def read(self, index: tf.Tensor) -> tuple[Any, tf.Tensor]:
        images, numbers = super().read(index)
        return {IMAGE: images, MASK: tf.gather(self._paths, index)}, numbers

    def load_limited(self, item: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        mask = tf.ensure_shape(tf.numpy_function(self._load_mask, [item[MASK]], tf.int32), [None, None])
        return {IMAGE: super().load_limited(item[IMAGE]), MASK: mask}

    def _load_mask(self, path: bytes) -> np.ndarray:
        return self._values.encode(read_mask(Path(path.decode()).read_bytes()))

    def inspect(self, index: int) -> StoredExample:
        example = super().inspect(index)
        mask = self.masks[index]
        try:
            self._load_mask(str(mask).encode())
        except (OSError, BadMask) as error:
            fault = error.fault if isinstance(error, BadMask) else f"can't be read: {error.strerror}"
            raise UnreadableExample(str(mask), fault, "replace or remove it") from error
        return example


def _compare_sizes(mask: tuple[int, int], image: tuple[int, int]) -> BadMask | None:
    """Return the fault of a mask of another size than its image."""
    if image in (mask, (1, 1)):  # that of an image without a header, which is named later
        return None
    (height, width), (rows, columns) = mask, image
    return BadMask(
        f"is {width} x {height} pixels, and its image is {columns} x {rows}", "save it in the size of the image"
    )


# ---- arrays ----


class MaskedArrays(Split):
    """Images with masks in memory.

    Args:
        images: as of `ArraySplit`.
        masks: classes of pixels, int32 [size, height, width].
        classes: their number.
    """

    pixels: np.ndarray
    position_counts: np.ndarray

    def __init__(self, images: np.ndarray, masks: np.ndarray, classes: int, white: int) -> None:
        self.size, self.shape, self.channels, self.white = len(images), images.shape[1:], images.shape[-1], white
        self.pixels = np.tile(images.shape[1:3], [len(images), 1])
        self.position_counts = np.stack([np.bincount(mask[mask >= 0], minlength=classes) for mask in masks])
        with tf.device("CPU"):
            self._images = tf.constant(images, tf.float32 if images.dtype.kind == "f" else tf.uint8)
            self._masks = tf.constant(masks, tf.int32)

    def read(self, index: tf.Tensor) -> tuple[Any, tf.Tensor]:
        parts = {IMAGE: tf.gather(self._images, index), MASK: tf.gather(self._masks, index)}
        return parts, tf.cast(index, tf.int32)


def open_masked_arrays(config: NpzConfig, wanted: Wanted) -> Source:
    """Return the images and masks of an .npz file; for a trained run in one split.

    Raises:
        DataError: the file can't be read or lacks an array, or a mask has values without a class.
    """
    with NpzFile.opened(config.path) as file:
        for prefix in file.prefixes.values():
            file.check_masks(prefix)
        masks = {split: file.read_array(f"{prefix}masks") for split, prefix in file.prefixes.items()}
        arrays, white, notes = read_images(config, file)
    for each in masks.values():
        if not (each.min() >= 0 and each.max() <= MOST):  # as of NaN, too
            raise DataError(
                f"{config.path}: masks have values from {each.min()} to {each.max()}, and these are from 0 to {MOST}: "
                "save pixels without a class as 255, and set data.ignore=255"
            )
        if each.dtype.kind == "f" and (each != np.floor(each)).any():
            part = each[each != np.floor(each)][0]
            raise DataError(f"{config.path}: masks hold {part}, and values are whole numbers: save them so")
    stored = {name: each.reshape(each.shape[:3]).astype(np.int32) for name, each in masks.items()}
    if wanted.of_run is not None:
        arrays, stored = ({"train": np.concatenate([*each.values()])} for each in (arrays, stored))
    total = sum((count_values(values) for values in stored.values()), Counter())
    values = choose_values(config, total, None if wanted.of_run is None else wanted.of_run.class_names)
    try:
        masks = {name: values.encode(each) for name, each in stored.items()}
    except BadMask as bad:
        raise DataError(f"{config.path}: a mask {bad}") from bad
    examples = {name: (images, masks[name]) for name, images in arrays.items()}
    if len(examples) == 1 and wanted.of_run is None:
        ((images, own),) = examples.values()
        _check_number(len(own))
        test = np.isin(np.arange(len(own)), hold_out_evenly(len(own), config.test_fraction))
        examples = {"train": (images[~test], own[~test]), "test": (images[test], own[test])}
    splits = {name: MaskedArrays(*each, values.count, white) for name, each in examples.items()}
    notes += _note_counts(splits, values)
    return _make_source(splits, values, config, notes, {"data.arrays": hash_texts(file.checksums)})


def _make_source(
    splits: Mapping[str, MaskedFiles | MaskedArrays],
    values: MaskValues,
    config: FolderConfig | NpzConfig,
    notes: Sequence[str],
    fingerprint: Mapping[str, str],
) -> Source:
    """Return the source of splits. Raise DataError if images differ in size, and no key says what is taken of them."""
    sizes = np.unique(np.concatenate([split.pixels for split in splits.values()]), axis=0)
    sizes = sizes[sizes.all(axis=1)]  # without those of images that are left out
    if len(sizes) > 1 and config.crop is None and config.image_size is None:
        (height, width), (rows, columns) = sizes[0].tolist(), sizes[-1].tolist()
        raise DataError(
            f"{config.path}: images differ in size, from {width} x {height} to {columns} x {rows} pixels; train on "
            "crops of them, such as data.crop=256, or resize all, data.image_size=256"
        )
    train = splits["train"]
    inputs = make_scenes(config, (*sizes[0].tolist(), train.channels), train.white)
    return Source(
        train,
        splits.get("test"),
        values.count,
        list(notes),
        class_names=list(values.names),
        val=splits.get("val"),
        fingerprint=dict(fingerprint),
        inputs=inputs,
    )


def _note_counts(splits: Mapping[str, MaskedFiles | MaskedArrays], values: MaskValues) -> list[str]:
    """Return notes of the values of the masks, and of the share of each class among the pixels to train on."""
    counts = splits["train"].position_counts.sum(0)
    pixels = int(splits["train"].pixels.prod(1).sum())
    names = values.names or [str(number) for number in range(values.count)]
    shares = [f"{name} {count / pixels:.1%}" for name, count in zip(names, counts.tolist(), strict=True)]
    ignored = f", and {(pixels - counts.sum()) / pixels:.1%} have no class" if counts.sum() < pixels else ""
    notes = [values.note] if values.note else []
    notes.append(f"pixels to train on: {list_first(shares, SHOWN)}{ignored}")
    if absent := [name for name, count in zip(names, counts.tolist(), strict=True) if not count]:
        notes.append(f"no pixel to train on is {list_first(absent)}")
    return notes
