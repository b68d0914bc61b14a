"""The files of a directory of class folders. The sorted names of the folders at the top are the classes."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from accumtrain.data.local_files import IMAGE_SUFFIXES, check_name
from accumtrain.data.part import held_out_of
from accumtrain.errors import DataError
from accumtrain.kinds.sources import FolderConfig

_FOLDERS = {"val": ("val", "valid", "validation"), "test": ("test",)}
_NAMED = 5  # files named in a message


@dataclass
class Listing:
    """The image files of each class, sorted by path, and all other files. `folder` holds the folders of the classes."""

    folder: Path
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
        """The paths of the files below `folder`, beginning with their classes."""
        return [file.relative_to(self.folder).as_posix() for file in self.files]

    @property
    def deeper(self) -> list[Path]:
        """The files that are not in their class's folder itself, but in one within it."""
        return [file for name, files in self.classes.items() for file in files if file.parent != self.folder / name]


def list_splits(config: FolderConfig) -> dict[str, Listing]:
    """The files of train, and of val or test or both.

    Raises:
        DataError: The folder has another structure.
        OSError: A folder can't be read.
    """
    root = Path(config.path)
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


def told(files: Sequence[object]) -> str:
    """How many files there are, and the names of the first ones."""
    return f"{counted(files)}: " + ", ".join(map(str, files[:_NAMED])) + (", ..." if len(files) > _NAMED else "")


def counted(files: Sequence[object]) -> str:
    return "1 file" if len(files) == 1 else f"{len(files):,} files"


def _split_folders(root: Path) -> dict[str, Path]:
    folders = {"train": root / "train"}
    for split, names in _FOLDERS.items():
        found = [root / name for name in names if (root / name).is_dir()]
        if len(found) > 1:
            raise DataError(f"{root} has {' and '.join(f'{each.name}/' for each in found)}: keep one of them")
        if found:
            folders[split] = found[0]
    if len(folders) == 1:
        others = [each.name for each in _visible(root) if each.is_dir() and each.name != "train"]
        remedy = f"add one, or give data.path={root / 'train'}"
        if others:
            some = ", ".join(others[:_NAMED]) + (", ..." if len(others) > _NAMED else "")
            remedy += f"; if train is a class as {some} may be, give its folder another name"
        raise DataError(f"{root} has train/ but neither test/ nor val/: {remedy}")
    return folders


def _list_classes(folder: Path) -> Listing:
    listing = Listing(folder)
    for entry in _visible(folder):
        if not entry.is_dir():
            listing.ignored.append(entry)
            continue
        files, others = _list_images(entry)
        if not files:
            inside = f"; it has {told(others)}" if others else ", and nothing else"
            raise DataError(
                f"class folder {entry} holds no image, whose name ends in {', '.join(IMAGE_SUFFIXES)}{inside}: add "
                "some, or remove the folder"
            )
        listing.classes[entry.name] = files
        listing.ignored += others
    if len(listing.classes) < 2:
        raise DataError(
            f"{folder} has {len(listing.classes)} class folder(s): it takes two or more to tell apart{_below(folder)}"
        )
    return listing


def _list_images(folder: Path) -> tuple[list[Path], list[Path]]:
    """The image files in a folder and in those within it, and all others. A link to a folder is no folder here."""
    files, others = list[Path](), list[Path]()
    for entry in _visible(folder):
        if entry.suffix.lower() in IMAGE_SUFFIXES:
            files.append(entry)
        elif entry.is_dir() and not entry.is_symlink():
            inside, rest = _list_images(entry)
            files += inside
            others += rest
        else:
            others.append(entry)
    return files, others


def _below(folder: Path) -> str:
    """The remedy where the classes are one level further down; empty if they are not."""
    for entry in _visible(folder):
        names = [each.name for each in _visible(entry) if each.is_dir()] if entry.is_dir() else []
        if len(names) > 1:
            some = ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
            return f"; if the classes are {some}, move them up from {entry.name}/, or give data.path={entry}"
    return ""


def _visible(folder: Path) -> list[Path]:
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    for entry in entries:
        check_name(entry)
    return entries


def _hold_out(listing: Listing, fraction: float) -> dict[str, Listing]:
    """Splits into training and test files. Of a class of n files, round(n * fraction) but at least one are for testing.

    These are the ones whose names have the smallest CRC-32, so the split is the same on every machine and for every
    seed.
    """
    train, test = Listing(listing.folder, ignored=listing.ignored), Listing(listing.folder)
    for kind, files in listing.classes.items():
        if len(files) < 2:
            raise DataError(f"class {kind} has a single image, {files[0]}: it takes two to train and to test")
        held = held_out_of(len(files), fraction)
        names = {file: file.relative_to(listing.folder / kind).as_posix() for file in files}
        by_hash = sorted(files, key=lambda file: (zlib.crc32(names[file].encode()), names[file]))
        test.classes[kind], train.classes[kind] = sorted(by_hash[:held]), sorted(by_hash[held:])
    return {"train": train, "test": test}
