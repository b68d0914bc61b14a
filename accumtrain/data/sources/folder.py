"""Class folders; files of no class."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import tensorflow as tf

from accumtrain.data.config import DataConfig, FolderConfig
from accumtrain.data.encoded import EncodedSplit
from accumtrain.data.holdout import hold_out_by_name
from accumtrain.data.image_header import UPRIGHT, Header, fault_of_image, unusual_headers
from accumtrain.data.local_files import IMAGE_SUFFIXES, check_name, size_of_file
from accumtrain.data.preprocess import Preprocess, make_preprocess
from accumtrain.data.source import Dataset, Source, UnreadableExample, hash_texts
from accumtrain.data.sources.listing import Image, Listing, counted, first_of, readable, told
from accumtrain.errors import DataError
from accumtrain.fields import normal_form
from accumtrain.runs.run import Images

# The files of a directory of class folders. The sorted names of the folders at the top are the classes.


_SPLITS = {  # the words in the names of their folders
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_WITH_SET = re.compile(r"(set|data|images)$")  # of a word such as testset
TABLES = (".csv", ".tsv")


@dataclass
class _Left:
    """Files that are no images; images in no class's folder; and those in a folder within their class's folder."""

    ignored: list[Path] = field(default_factory=list)
    beside: list[Path] = field(default_factory=list)
    deeper: list[Path] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        suffixes = ", ".join(IMAGE_SUFFIXES)
        notes = [f"ignored, as their names end in none of {suffixes}: {told(self.ignored)}"] if self.ignored else []
        if self.beside:
            notes.append(f"ignored, as they are in no class's folder: {told(self.beside)}")
        if self.deeper:
            notes.append(f"in folders within a class's folder, and of that class: {told(self.deeper)}")
        return notes


def list_splits(config: FolderConfig) -> tuple[dict[str, Listing], list[str]]:
    """The files of train, and of val or test or both, and notes of what was left out.

    Raises:
        DataError: The folder has another structure.
        OSError: A folder can't be read.
    """
    root, left = _root(config), _Left()
    tops = _tops(root)
    splits = _split_folders(root, tops, trains=True)
    if not splits:
        return hold_out_by_name(_list_classes(root, left), config.test_fraction), left.notes
    unlabelled = [name for name, folder in splits.items() if name != "train" and _has_images(folder)]
    folders = {name: folder for name, folder in splits.items() if name not in unlabelled}
    if len(splits) == 1 and _classes_in(splits["train"]):
        raise _untested(root, splits["train"], tops)
    train = _list_classes(folders["train"], left)
    if len(folders) == 1:
        listings = hold_out_by_name(train, config.test_fraction)
    else:
        listings = {name: _as_in(train, folder, name, left) for name, folder in folders.items() if name != "train"}
        listings = {"train": train, **listings}
    notes = [
        f"{folders[name].name}/ has no images of {first_of(none)}"
        for name, listing in listings.items()
        if (none := [kind for kind, images in listing.items() if not images])
    ]
    notes += [
        f"{splits[name]}/ has no labels, as its images are in no class folders, and is not read: "
        f"job=predict predict.input={splits[name]} is for it"
        for name in unlabelled
    ]
    if others := [each.name for each in tops if split_of(each.name) not in splits]:
        notes.append(f"not read, as their names say no split: {first_of(others)}")
    return listings, [*notes, *left.notes]


def list_all(config: FolderConfig) -> tuple[Listing, list[str]]:
    """All images of a folder in one listing, whatever split they are in. Raises what `list_splits` raises."""
    root, left, listing = _root(config), _Left(), Listing()
    for folder in _split_folders(root, _tops(root), trains=False).values() or [root]:
        for kind, images in _class_folders(folder, left).items():
            listing.setdefault(kind, []).extend(images)
    if not any(listing.values()):
        raise DataError(f"{root} has no class folder that holds an image{_remedy(root)}")
    return {kind: listing[kind] for kind in sorted(listing) if listing[kind]}, left.notes


def _root(config: FolderConfig) -> Path:
    root = Path(config.path)
    if not root.is_dir():
        raise DataError(f"data.path={config.path} is not a directory: give the folder that holds the class folders")
    return root


def _tops(root: Path) -> list[Path]:
    """The folders in `root` that hold images."""
    return [each for each in _visible(root) if each.is_dir() and _holds_images(each)]


def split_of(name: str) -> str | None:
    """The split that a folder's name says, such as Testing, seg_test or test_set; None if it says none, or two."""
    words = {_WITH_SET.sub("", word.lower()) for word in _WORD.findall(name)}
    found = [split for split, of_split in _SPLITS.items() if words & set(of_split)]
    return found[0] if len(found) == 1 else None


def _split_folders(root: Path, tops: Sequence[Path], *, trains: bool) -> dict[str, Path]:
    """The folders that hold the class folders of each split; empty if `root` holds those of the classes itself.

    Args:
        tops: the folders in `root` that hold images.
        trains: whether a folder to train on is needed.

    Raises:
        DataError: Both can be meant, or there are two folders of a split.
    """
    inside = {top: _classes_in(_unwrapped(top)) for top in tops}
    named: dict[str, list[Path]] = {}
    for top in tops:
        if split := split_of(top.name):
            named.setdefault(split, []).append(top)
    only_splits = tops and len(tops) == sum(map(len, named.values()))
    if only_splits or any(inside[top] for top in named.get("train", [])):
        if trains and "train" not in named:
            raise _ambiguous(root, inside)
        for folders in named.values():
            if len(folders) > 1:
                raise DataError(f"{root} has {' and '.join(f'{each.name}/' for each in folders)}: keep one of them")
        return {split: _unwrapped(named[split][0]) for split in _SPLITS if split in named}
    same = max(inside.values(), key=len, default=set())
    alike = len(tops) > 1 and all(len(names) > 1 and names <= same for names in inside.values())
    if alike or any(inside[top] for folders in named.values() for top in folders):
        raise _ambiguous(root, inside)
    return {}


def _ambiguous(root: Path, inside: dict[Path, set[str]]) -> DataError:
    """The error that shows both readings of folders within folders."""
    tops, inner = [top.name for top in inside], sorted(set.union(*inside.values()))
    if all(map(split_of, tops)):
        return DataError(
            f"{root} has {first_of(tops)}, named after splits, and no train: give the folder to train on that name, "
            "with a folder for each class in it"
        )
    if all(map(split_of, inner)):
        return DataError(
            f"{root}: the folders of the classes, {first_of(tops)}, hold those of the splits, {first_of(inner)}: make "
            f"it the other way round, as {split_of(inner[0])}/{tops[0]}/"
        )
    return DataError(
        f"{root} can be read in two ways. If {first_of(tops)} are splits and {first_of(inner)} the classes, name the "
        f"splits train, val and test. If {first_of(tops)} are the classes, move the images in folders within them up "
        f"into these"
    )


def _untested(root: Path, train: Path, tops: Sequence[Path]) -> DataError:
    others = [each.name for each in tops if split_of(each.name) != "train"]
    remedy = f"add one, or give data.path={train}"
    if others:
        remedy += f"; if train is a class as {first_of(others)} may be, give its folder another name"
    return DataError(f"{root} has train/ but neither test/ nor val/ with images: {remedy}")


def _as_in(train: Listing, folder: Path, split: str, left: _Left) -> Listing:
    """The images of another split, with the classes of train in their order; one may have no images.

    Raises:
        DataError: A class is not one of train.
    """
    listing = _class_folders(folder, left)
    if unknown := sorted(kind for kind in listing.keys() - train.keys() if listing[kind]):
        raise DataError(
            f"{folder} has the class {first_of(unknown)}, which train/ lacks (it has {first_of(list(train))}): give "
            f"each class training images, or move its {split} images away; images without labels are for job=predict"
        )
    if not any(listing.values()):
        raise DataError(f"{folder} holds no image: add some, or remove the folder")
    return {kind: listing.get(kind, []) for kind in train}


def _list_classes(folder: Path, left: _Left) -> Listing:
    """The images of two or more classes, none of which lacks images."""
    listing = _class_folders(folder, left)
    for kind, images in listing.items():
        if not images:
            others = [each for each in left.ignored if normal_form(each.relative_to(folder).parts[0]) == kind]
            inside = f"; it has {told(others)}" if others else ", and nothing else"
            raise DataError(
                f"class folder {folder / kind} holds no image, whose name ends in {', '.join(IMAGE_SUFFIXES)}{inside}: "
                "add some, or remove the folder"
            )
    if len(listing) < 2:
        raise DataError(
            f"{folder} has {len(listing)} class folder(s): it takes two or more to tell apart{_remedy(folder)}"
        )
    return listing


def _class_folders(folder: Path, left: _Left) -> Listing:
    """The images in each folder at the top of `folder`."""
    listing = Listing()
    for entry in _visible(folder):
        if not entry.is_dir():
            (left.beside if is_image(entry) else left.ignored).append(entry)
            continue
        files, others = _list_images(entry)
        left.ignored += others
        left.deeper += [file for file in files if file.parent != entry]
        images = [Image(normal_form(file.relative_to(entry).as_posix()), file) for file in files]
        listing.setdefault(normal_form(entry.name), []).extend(images)
    return listing


def _list_images(folder: Path) -> tuple[list[Path], list[Path]]:
    """The image files in a folder and in those within it, and all others. A link to a folder is no folder here."""
    files, others = list[Path](), list[Path]()
    for entry in _visible(folder):
        if is_image(entry):
            files.append(entry)
        elif entry.is_dir() and not entry.is_symlink():
            inside, rest = _list_images(entry)
            files += inside
            others += rest
        else:
            others.append(entry)
    return files, others


def is_image(entry: Path) -> bool:
    """Whether the name of a file is that of an image."""
    return entry.suffix.lower() in IMAGE_SUFFIXES


def _has_images(folder: Path) -> bool:
    """Whether images lie in the folder itself."""
    return any(is_image(entry) for entry in _seen(folder))


def _holds_images(folder: Path) -> bool:
    """Whether there are images in the folder or in one within it."""
    return _has_images(folder) or any(
        entry.is_dir() and not entry.is_symlink() and _holds_images(entry) for entry in _seen(folder)
    )


def _classes_in(folder: Path) -> set[str]:
    """The names of the folders in `folder` that hold images; empty if images lie beside them."""
    if _has_images(folder):
        return set()
    return {normal_form(entry.name) for entry in _seen(folder) if entry.is_dir() and _holds_images(entry)}


def _unwrapped(folder: Path) -> Path:
    """The folder itself, or the one in it that holds all there is, as in seg_train/seg_train/."""
    inside = [entry for entry in _seen(folder) if entry.is_dir() and _holds_images(entry)]
    if len(inside) == 1 and not _has_images(folder) and (split_of(inside[0].name) or _classes_in(inside[0])):
        return _unwrapped(inside[0])
    return folder


def _remedy(folder: Path) -> str:
    """What to do about a folder without class folders: where they or a table of labels may be; empty if nowhere."""
    tables = [each for place in (folder, folder.parent) for each in _seen(place) if each.suffix.lower() in TABLES]
    if tables and len(_classes_in(folder)) < 2:
        return f"; if {tables[0].name} holds the labels of the images: data=table data.path={tables[0]}"
    for entry in _visible(folder):
        names = [each.name for each in _visible(entry) if each.is_dir()] if entry.is_dir() else []
        if len(names) > 1:
            return f"; if the classes are {first_of(names)}, move them up from {entry.name}/, or give data.path={entry}"
    return ""


def _visible(folder: Path) -> list[Path]:
    """What is in a folder, in the order of names. Raises DataError for a name that can't be used."""
    entries = sorted(_seen(folder), key=lambda entry: normal_form(entry.name))
    for entry in entries:
        check_name(entry)
    return entries


def _seen(folder: Path) -> Iterator[Path]:
    return (entry for entry in folder.iterdir() if not entry.name.startswith("."))


# Image files of classes, and those of no class: their bytes, and which side of them is up.


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
    return hash_texts(f"{name} {size}" for name, size in zip(names, sizes, strict=True))


def notes_of(unusual: Mapping[Path, Header]) -> list[str]:
    """What the user should know of the images that are used: which are turned, and which lose something."""
    turned = [file for file, header in unusual.items() if header.orientation != UPRIGHT]
    notes = [f"turned upright, as their EXIF orientation says: {told(turned)}"] if turned else []
    for loss in sorted({header.loss for header in unusual.values() if header.loss}):
        notes.append(f"{loss}: {told([file for file, header in unusual.items() if header.loss == loss])}")
    return notes


# Image files without labels, prepared as a run's test images are.


WHITE = 255  # of the pixels of a file


def open_files(files: Sequence[Path], config: DataConfig, images: Images) -> Dataset:
    """The files as the test images of a data set; the label of each is its place in `files`.

    Those that can't be read or decoded are left out, and named in `skipped`.

    Args:
        config: the data keys of the run.
        images: what the run was trained on.
    """
    keys = FolderConfig(path="", max_pixels=config.max_pixels, on_error="skip")
    unusual = unusual_headers(files)
    split = FolderSplit(files, list(range(len(files))), unusual, keys)
    split.channels = images.shape[-1]
    return Dataset(
        train=split,
        test=split,
        num_classes=len(images.class_names),
        image_shape=images.shape,
        preprocess=preprocess_any_size(config, images),
        class_names=images.class_names,
        notes=notes_of(unusual),
    )


def preprocess_any_size(config: DataConfig, images: Images) -> Preprocess:
    """The preprocessing of the run, for pixels 0..255 in images of any size."""
    height, width, channels = images.shape
    return replace(make_preprocess(config, channels=channels, white=WHITE), image_size=(height, width))
