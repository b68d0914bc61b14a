"""data=folder: image files in class folders, with or without folders of splits above them; and files of no class.

The sorted names of the class folders are the classes.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import tensorflow as tf

from accumtrain.data.config import DataConfig, FolderConfig
from accumtrain.data.holdout import hold_out_by_name
from accumtrain.data.images.encoded import EncodedSplit, Label
from accumtrain.data.images.header import UPRIGHT, Header, read_unusual_headers
from accumtrain.data.local_files import (
    IMAGE_SUFFIXES,
    Image,
    ImagesByClass,
    check_name,
    count_files,
    find_file_fault,
    get_file_size,
    is_image,
    iterate_visible,
    list_files,
    list_first,
    readable,
)
from accumtrain.data.source import Source, UnreadableExample, Wanted, hash_texts
from accumtrain.errors import DataError
from accumtrain.fields import normal_form
from accumtrain.runs.names import is_of_runs

SPLIT_NAMES = {  # the words in the names of their folders
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_WITH_SET = re.compile(r"(set|data|images)$")  # of a word such as testset
_TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
_CHANNELS = 3
_LISTED = 5  # faults in a message


# ---- sources of image files ----


def open_folder(config: FolderConfig, wanted: Wanted) -> Source:
    """Return the images of a folder, with notes of what was ignored, turned, or lost in decoding.

    For a trained run they are one split, whatever folder they are in.

    Raises:
        DataError: The folder can't be read or has another structure, or a file is not an image.
    """
    with readable():
        by_class, notes = list_splits(config) if wanted.of_run is None else _list_all(config)
    listings = {name: list_by_class(listing) for name, listing in by_class.items()}
    return make_source(listings, list(by_class["train"]), notes, config)


@dataclass(frozen=True)
class Listing:
    """The images of a split.

    Attributes:
        files: Their files.
        labels: Integers [N], or float32 [N, T].
        names: Their names, each beginning with its class or its targets. They are read once, for the fingerprint.
        locate: From an image's index to what stands before its file in messages, such as its line in a table.
    """

    files: Sequence[Path]
    labels: np.ndarray
    names: Iterable[str]
    locate: Callable[[int], str] = lambda index: ""


def list_by_class(listing: ImagesByClass) -> Listing:
    """Return the images of classes, which are numbered in their order."""
    return Listing(
        [image.file for images in listing.values() for image in images],
        np.repeat(np.arange(len(listing), dtype=np.int32), [len(images) for images in listing.values()]),
        (f"{kind}/{image.name}" for kind, images in listing.items() for image in images),
    )


def make_source(
    listings: Mapping[str, Listing], class_names: Sequence[str], notes: Sequence[str], config: DataConfig
) -> Source:
    """Return a source of image files.

    Args:
        listings: the images of train, and of val or test or both.
        class_names: the names of the classes, labels or numbers.
        notes: about them, for the user.

    Raises:
        DataError: A file is not an image.
    """
    splits, header_notes = make_splits(listings, config)
    digests = {name: _digest(listing, splits[name].sizes) for name, listing in listings.items()}
    return make_encoded_source(splits, class_names, [*notes, *header_notes], digests, config)


def make_encoded_source(
    splits: Mapping[str, EncodedSplit],
    class_names: Sequence[str],
    notes: Sequence[str],
    digests: Mapping[str, str],
    config: DataConfig,
) -> Source:
    """Return a source of splits that have the images of a file format, and of their digests for the fingerprint."""
    if config.image_size is None:
        shape = splits["train"].inspect_first().shape
        for split in splits.values():
            split.shape = shape
    return Source(
        splits["train"],
        splits.get("test"),
        num_classes=len(class_names),
        notes=list(notes),
        class_names=list(class_names),
        val=splits.get("val"),
        fingerprint={f"data.{name}.files": digest for name, digest in digests.items()},
    )


def make_splits(listings: Mapping[str, Listing], config: DataConfig) -> tuple[dict[str, FolderSplit], list[str]]:
    """Return the splits of image files, and notes about these. Raise what `make_source` raises."""
    unusual = {name: read_unusual_headers(listing.files) for name, listing in listings.items()}
    _check_usable(listings, unusual, config)
    splits = {
        name: FolderSplit(listing.files, listing.labels, unusual[name], config) for name, listing in listings.items()
    }
    return splits, _describe_headers({file: header for found in unusual.values() for file, header in found.items()})


def open_files(files: Sequence[Path], config: DataConfig, channels: int) -> tuple[FolderSplit, list[str]]:
    """Return the files as a split, and notes about them. The label of an image is its index in `files`.

    Those that can't be read or decoded are left out, and named in `skipped`.

    Args:
        config: the data keys of the run.
        channels: those of the images that the run was trained on.
    """
    keys = FolderConfig(path="", max_pixels=config.max_pixels, on_error="skip")
    unusual = read_unusual_headers(files)
    split = FolderSplit(files, np.arange(len(files), dtype=np.int32), unusual, keys)
    split.channels = channels
    return split, _describe_headers(unusual)


# ---- a split of image files ----


class FolderSplit(EncodedSplit):
    """Image files, each with a label. Those with a fault are never opened.

    Args:
        labels: integers [N], or float32 [N, T].
        unusual: the headers of the files that have a fault, are not upright, or lose something in decoding.
    """

    def __init__(
        self, files: Sequence[Path], labels: np.ndarray, unusual: Mapping[Path, Header], config: DataConfig
    ) -> None:
        super().__init__(len(files), None, _CHANNELS, config)
        self.files, self.known_labels, self._known = files, labels, labels
        found = {index: unusual[file] for index, file in enumerate(files) if file in unusual} if unusual else {}
        self._faulty = {index for index, header in found.items() if header.fault}
        orientations = np.full(len(files), UPRIGHT, np.int32)
        for index, header in found.items():
            orientations[index] = header.orientation
        with tf.device("CPU"):
            self._labels = tf.constant(labels, tf.float32 if labels.dtype.kind == "f" else tf.int32)
            self._orientations = tf.constant(orientations) if (orientations != UPRIGHT).any() else None
        if self.skips:
            for index in sorted(self._faulty):
                self._skipped[index] = UnreadableExample(str(files[index]), str(found[index].fault), self.undecodable)

    @cached_property
    def sizes(self) -> Sequence[int]:
        return array("q", map(get_file_size, self.files))

    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        paths = tf.ensure_shape(tf.numpy_function(self._list_paths, [index], tf.string), [None])
        return paths, tf.gather(self._labels, index)

    def _list_paths(self, index: np.ndarray) -> np.ndarray:
        """Return the paths of files, bytes [n]; nothing for one that has a fault."""
        indices = self.remember(index).tolist()
        return np.array([b"" if file in self._faulty else os.fsencode(self.files[file]) for file in indices], object)

    def load(self, item: tf.Tensor) -> tf.Tensor:
        return tf.io.read_file(item)

    def orientation(self, index: tf.Tensor) -> tf.Tensor | None:
        return None if self._orientations is None else tf.gather(self._orientations, index)

    def read_stored(self, index: int) -> tuple[bytes, Label]:
        file = self.files[index]
        if fault := find_file_fault(file):  # of an image it is seen when it is decoded
            raise UnreadableExample(str(file), fault, self.undecodable)
        try:
            return file.read_bytes(), self._known[index]
        except OSError as error:
            raise UnreadableExample(str(file), f"can't be read: {error.strerror}") from error

    def name(self, index: int) -> str:
        return str(self.files[index])


def _digest(listing: Listing, sizes: Iterable[int]) -> str:
    """Return a hash of the names of all files, and of their sizes."""
    return hash_texts(f"{name} {size}" for name, size in zip(listing.names, sizes, strict=True))


def _check_usable(
    listings: Mapping[str, Listing], unusual: Mapping[str, Mapping[Path, Header]], config: DataConfig
) -> None:
    """Raise DataError if files can't be used that may not be left out."""
    if config.on_error != "raise" or not any(header.fault for found in unusual.values() for header in found.values()):
        return
    bad = [
        f"{listing.locate(index)}{file} {unusual[name][file].fault}"
        for name, listing in listings.items()
        for index, file in enumerate(listing.files)
        if file in unusual[name] and unusual[name][file].fault
    ]
    more = "; ..." if len(bad) > _LISTED else ""
    raise DataError(
        f"{count_files(bad)} named as an image can't be used: {'; '.join(bad[:_LISTED])}{more}: "
        "replace or remove them, or set data.on_error=skip to go on without them"
    )


def _describe_headers(unusual: Mapping[Path, Header]) -> list[str]:
    """Return notes of the images that are turned, and of those that lose something in decoding."""
    turned = [file for file, header in unusual.items() if header.is_turned]
    notes = [f"turned upright, as their EXIF orientation says: {list_files(turned)}"] if turned else []
    for loss in sorted({header.loss for header in unusual.values() if header.loss}):
        notes.append(f"{loss}: {list_files([file for file, header in unusual.items() if header.loss == loss])}")
    return notes


# ---- listing the class folders ----


@dataclass
class _OtherFiles:
    """Files that are no images; images in no class's folder; and those in a folder within their class's folder."""

    ignored: list[Path] = field(default_factory=list)
    beside: list[Path] = field(default_factory=list)
    deeper: list[Path] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        suffixes = ", ".join(IMAGE_SUFFIXES)
        about = {
            f"ignored, as their names end in none of {suffixes}": self.ignored,
            "ignored, as they are in no class folder": self.beside,
            "in folders inside a class folder, and counted as that class": self.deeper,
        }
        return [f"{text}: {list_files(files)}" for text, files in about.items() if files]


def list_splits(config: FolderConfig) -> tuple[dict[str, ImagesByClass], list[str]]:
    """Return the files of train, and of val or test or both, and notes of what was left out.

    Raises:
        DataError: The folder has another structure.
        OSError: A folder can't be read.
    """
    root, others = _find_root(config), _OtherFiles()
    tops = _list_tops(root)
    splits = _find_split_folders(root, tops, needs_train=True)
    if not splits:
        return hold_out_by_name(_list_classes(root, others), config.test_fraction), others.notes
    if len(splits) == 1 and _classes_in(splits["train"]):
        raise _untested(root, splits["train"], tops)
    unlabelled = [name for name, folder in splits.items() if name != "train" and _has_images(folder)]
    evaluated = [name for name in splits if name != "train" and name not in unlabelled]
    train = _list_classes(splits["train"], others)
    if evaluated:
        listings = {"train": train} | {name: _list_as_in(train, splits[name], name, others) for name in evaluated}
    else:
        listings = hold_out_by_name(train, config.test_fraction)
    notes = [
        f"{splits[name].name}/ has no images of {list_first(absent)}"
        for name in evaluated
        if (absent := [kind for kind, images in listings[name].items() if not images])
    ]
    notes += [
        f"{splits[name]}/ has no labels, as its images are in no class folders, and is not read: "
        f"use job=predict predict.input={splits[name]} for it"
        for name in unlabelled
    ]
    if unread := [top.name for top in tops if find_split(top.name) not in splits]:
        notes.append(f"not read, as they are not named after a split: {list_first(unread)}")
    return listings, [*notes, *others.notes]


def _list_all(config: FolderConfig) -> tuple[dict[str, ImagesByClass], list[str]]:
    """Return all images of a folder as one split, whatever split they are in. Raise what `list_splits` raises."""
    root, others, listing = _find_root(config), _OtherFiles(), ImagesByClass()
    for folder in _find_split_folders(root, _list_tops(root), needs_train=False).values() or [root]:
        for kind, images in _list_class_folders(folder, others).items():
            listing.setdefault(kind, []).extend(images)
    if not any(listing.values()):
        raise DataError(f"{root} has no class folder that holds an image{_find_remedy(root)}")
    return {"train": {kind: listing[kind] for kind in sorted(listing) if listing[kind]}}, others.notes


def _find_root(config: FolderConfig) -> Path:
    root = Path(config.path)
    if not root.is_dir():
        raise DataError(f"data.path={config.path} is not a directory: give the folder that holds the class folders")
    return root


def _list_tops(root: Path) -> list[Path]:
    """Return the folders in `root` that hold images."""
    return [entry for entry in _list_visible(root) if entry.is_dir() and _holds_images(entry)]


def _list_classes(folder: Path, others: _OtherFiles) -> ImagesByClass:
    """Return the images of two or more classes, none of which lacks images."""
    listing = _list_class_folders(folder, others)
    for kind, images in listing.items():
        if not images:
            ignored = [file for file in others.ignored if normal_form(file.relative_to(folder).parts[0]) == kind]
            inside = f"; it has {list_files(ignored)}" if ignored else ", and nothing else"
            raise DataError(
                f"class folder {folder / kind} holds no image, whose name ends in {', '.join(IMAGE_SUFFIXES)}{inside}: "
                "add some, or remove the folder"
            )
    if len(listing) < 2:
        raise DataError(
            f"{folder} has {len(listing)} class folder(s): it takes two or more to tell apart{_find_remedy(folder)}"
        )
    return listing


def _list_as_in(train: ImagesByClass, folder: Path, split: str, others: _OtherFiles) -> ImagesByClass:
    """Return the images of another split, with the classes of train in their order; one may have no images.

    Raises:
        DataError: A class is not one of train.
    """
    listing = _list_class_folders(folder, others)
    if unknown := sorted(kind for kind in listing.keys() - train.keys() if listing[kind]):
        raise DataError(
            f"{folder} has the class {list_first(unknown)}, which train/ lacks (it has {list_first(list(train))}): "
            f"give each class training images, or move its {split} images away; images without labels are for "
            "job=predict"
        )
    if not any(listing.values()):
        raise DataError(f"{folder} holds no image: add some, or remove the folder")
    return {kind: listing.get(kind, []) for kind in train}


def _list_class_folders(folder: Path, others: _OtherFiles) -> ImagesByClass:
    """Return the images in each folder at the top of `folder`."""
    listing = ImagesByClass()
    for entry in _list_visible(folder):
        if not entry.is_dir():
            (others.beside if is_image(entry) else others.ignored).append(entry)
            continue
        files, rest = _list_images(entry)
        if not files and any(map(is_of_runs, entry.iterdir())):
            continue  # it holds the runs of a version that left no mark in it
        others.ignored += rest
        others.deeper += [file for file in files if file.parent != entry]
        images = [Image(normal_form(file.relative_to(entry).as_posix()), file) for file in files]
        listing.setdefault(normal_form(entry.name), []).extend(images)
    return listing


def _list_images(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the image files in a folder and in those within it, and all others. Links to folders are not followed."""
    files, others = list[Path](), list[Path]()
    for entry in _list_visible(folder):
        if is_image(entry):
            files.append(entry)
        elif entry.is_dir() and not entry.is_symlink():
            inside, rest = _list_images(entry)
            files += inside
            others += rest
        else:
            others.append(entry)
    return files, others


def _untested(root: Path, train: Path, tops: Sequence[Path]) -> DataError:
    others = [top.name for top in tops if find_split(top.name) != "train"]
    remedy = f"add one, or give data.path={train}"
    if others:
        remedy += f"; if train is a class, as {list_first(others)} may be, give its folder another name"
    return DataError(f"{root} has train/ but neither test/ nor val/ with images: {remedy}")


def _find_remedy(folder: Path) -> str:
    """Return a remedy for a folder without class folders: a table, or the place of the classes; else nothing."""
    near = [file for each in (folder, folder.parent) for file in iterate_visible(each)]
    tables = sorted({file for file in near if file.suffix.lower() in _TABLES})
    if tables and len(_classes_in(folder)) < 2:
        if len(tables) == 1:
            return f"; if {tables[0].name} holds the labels of the images: data=table data.path={tables[0]}"
        named = ", ".join(file.name for file in tables)
        return f"; if one of {named} holds the labels of the images, give that one: data=table data.path=<table>"
    for entry in filter(Path.is_dir, _list_visible(folder)):
        names = [inner.name for inner in _list_visible(entry) if inner.is_dir()]
        if len(names) > 1:
            return (
                f"; if the classes are {list_first(names)}, move them up from {entry.name}/, or give data.path={entry}"
            )
    return ""


# ---- folders of splits ----


def find_split(name: str) -> str | None:
    """Return the split that a name such as Testing, seg_test or test_set says; None if it says none, or two."""
    words = set(_list_words(name))
    found = [split for split, of_split in SPLIT_NAMES.items() if words & set(of_split)]
    return found[0] if len(found) == 1 else None


def list_other_words(name: str) -> tuple[str, ...]:
    """Return the words of a name that say no split, in lower case."""
    said = {word for words in SPLIT_NAMES.values() for word in words}
    return tuple(word for word in _list_words(name) if word not in said)


def _list_words(name: str) -> list[str]:
    return [_WITH_SET.sub("", word.lower()) for word in _WORD.findall(name)]


def _find_split_folders(root: Path, tops: Sequence[Path], *, needs_train: bool) -> dict[str, Path]:
    """Return the folder of each split that holds its class folders; nothing if the class folders are in `root` itself.

    Args:
        root: the folder that the user gives.
        tops: the folders in it that hold images.
        needs_train: a folder to train on must be among them.

    Raises:
        DataError: Both can be meant, or there are two folders of a split.
    """
    by_split: dict[str, list[Path]] = {}
    for top in tops:
        if split := find_split(top.name):
            by_split.setdefault(split, []).append(top)
    named = [top for folders in by_split.values() for top in folders]
    classes = {top: _classes_in(_unwrap(top)) for top in tops}
    train_has_classes = any(classes[top] for top in by_split.get("train", []))
    if train_has_classes or (tops and len(named) == len(tops)):
        if needs_train and "train" not in by_split:
            raise _ambiguous(root, classes)
        for folders in by_split.values():
            if len(folders) > 1:
                raise DataError(f"{root} has {' and '.join(f'{top.name}/' for top in folders)}: keep one of them")
        return {split: _unwrap(by_split[split][0]) for split in SPLIT_NAMES if split in by_split}
    named_have_classes = any(classes[top] for top in named)
    if named_have_classes or _hold_same_classes([*classes.values()]):
        raise _ambiguous(root, classes)
    return {}


def _hold_same_classes(classes: Sequence[set[str]]) -> bool:
    """Return whether there are two folders or more, each with several classes, which all are those of the largest."""
    largest = max(classes, key=len, default=set())
    return len(classes) > 1 and all(len(names) > 1 and names <= largest for names in classes)


def _ambiguous(root: Path, classes: dict[Path, set[str]]) -> DataError:
    """Return the error that shows both readings of folders within folders."""
    tops, inner = [top.name for top in classes], sorted(set.union(*classes.values()))
    if all(map(find_split, tops)):
        return DataError(
            f"{root} has {list_first(tops)}, named after splits, and no train: give the folder to train on that name, "
            "with a folder for each class in it"
        )
    if all(map(find_split, inner)):
        return DataError(
            f"{root}: the folders of the classes, {list_first(tops)}, hold those of the splits, {list_first(inner)}: "
            f"make it the other way round, as {find_split(inner[0])}/{tops[0]}/"
        )
    return DataError(
        f"{root} can be read in two ways. If {list_first(tops)} are splits and {list_first(inner)} the classes, name "
        f"the splits train, val and test. If {list_first(tops)} are the classes, move the images in folders within "
        "them up into these"
    )


def _unwrap(folder: Path) -> Path:
    """Return the folder itself, or the one in it that holds all there is, as in seg_train/seg_train/."""
    inside = [entry for entry in iterate_visible(folder) if entry.is_dir() and _holds_images(entry)]
    if len(inside) == 1 and not _has_images(folder) and (find_split(inside[0].name) or _classes_in(inside[0])):
        return _unwrap(inside[0])
    return folder


# ---- the content of a folder ----


def _has_images(folder: Path) -> bool:
    """Return whether images lie in the folder itself."""
    return any(is_image(entry) for entry in iterate_visible(folder))


def _holds_images(folder: Path) -> bool:
    """Return whether there are images in the folder or in one within it."""
    return _has_images(folder) or any(
        entry.is_dir() and not entry.is_symlink() and _holds_images(entry) for entry in iterate_visible(folder)
    )


def _classes_in(folder: Path) -> set[str]:
    """Return the names of the folders in `folder` that hold images; empty if images lie beside them."""
    if _has_images(folder):
        return set()
    return {normal_form(entry.name) for entry in iterate_visible(folder) if entry.is_dir() and _holds_images(entry)}


def _list_visible(folder: Path) -> list[Path]:
    """Return the entries that are not hidden, in the order of names. Raise DataError for a name that can't be used."""
    entries = sorted(iterate_visible(folder), key=lambda entry: normal_form(entry.name))
    for entry in entries:
        check_name(entry)
    return entries
