"""data=texts: texts of one's own as files, of a class each, or with their tokens as targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from accumtrain.data.config import TextsConfig
from accumtrain.data.local_files import check_name, find_file_fault, list_first, readable, walk_files
from accumtrain.data.source import Source, Wanted
from accumtrain.data.sources.folder import find_split
from accumtrain.data.stream import UNREADABLE
from accumtrain.data.text.encode import Encoded, encode_texts
from accumtrain.data.text.texts import Text, check_is_no_table, read_file, read_lines
from accumtrain.data.text.tokens import Content, divide, find_vocabulary, make_token_source
from accumtrain.data.text.vocabulary import Vocabulary
from accumtrain.errors import DataError
from accumtrain.fields import normal_form

_PURPOSES = {"train": "train on", "val": "validate on", "test": "test on"}
_GIVE = "give a file of texts, or a folder of them"
_BY_CLASS = (
    "give a folder with a sub-folder for each class, or a table, data=table data.text_column=<name> "
    "data.label_column=<name>"
)

Read = Callable[[], Iterable[Text]]


def open_texts(config: TextsConfig, wanted: Wanted) -> Source:
    """Return the tokens of texts, in splits.

    The splits are those of the folder. Otherwise a part of the texts is held out to test on, evenly spaced among those
    of each class; of texts for a trained run none.

    Raises:
        ConfigError: A key does not go with the data, or the tokenizer can't be opened.
        DataError: The data can't be read, a text can't be used, or there is a single class.
    """
    vocabulary = find_vocabulary(config, wanted)
    content = _read_content(config, vocabulary, by_class=wanted.reader is not None)
    return make_token_source(config, content if wanted.of_run else divide(content, config.test_fraction))


def _read_content(config: TextsConfig, vocabulary: Vocabulary, *, by_class: bool) -> Content:
    listing, skips = _list_texts(config, by_class=by_class), config.on_error == "skip"
    splits = {}
    for split, texts in listing.splits.items():
        encoded, kinds = encode_texts(texts(), vocabulary.encode, skips=skips)
        if not encoded.ids:
            raise DataError(f"{config.path} holds no text to {_PURPOSES[split]}: write some into it")
        splits[split] = _label(encoded, kinds, listing.classes) if by_class else encoded
    return Content(config.path, vocabulary, splits, listing.classes, len(listing.classes), listing.notes)


def _label(texts: Encoded, kinds: Sequence[str], classes: Sequence[str]) -> Encoded:
    """Return texts with the numbers of their classes."""
    numbers = {kind: number for number, kind in enumerate(classes)}
    labels = [UNREADABLE if index in texts.faults else numbers[kind] for index, kind in enumerate(kinds)]
    return replace(texts, labels=np.array(labels, np.int32))


@dataclass(frozen=True)
class _TextListing:
    """The texts of each split as functions that read them, and notes about what was left out.

    Attributes:
        classes: The names of the classes in their order; empty if there are none.
    """

    splits: dict[str, Read]
    classes: list[str]
    notes: list[str]


def _list_texts(config: TextsConfig, *, by_class: bool) -> _TextListing:
    """Return the texts that data.path names.

    Args:
        by_class: The texts have classes. Without, a folder of any depth is read.

    Raises:
        DataError: There is no text, or the folder has another structure.
    """
    path = Path(config.path)
    with readable():
        if not path.is_dir():
            return _TextListing({"train": _reader_of(path, by_class=by_class)}, [], [])
        if files := _find_split_files(path):
            readers = {split: _reader_of(file, by_class=by_class) for split, file in files.items()}
            return _TextListing(readers, [], [])
        folders = _find_split_folders(path, by_class=by_class)
        if by_class:
            return _list_classes(path, folders)
        found = {split: list(walk_files(folder)) for split, folder in folders.items()}
        beside = _list_beside(path, folders)
        named = {split: [("", file) for file in files] for split, files in found.items() if files}
        splits: dict[str, Read] = {split: partial(_read_files, files) for split, files in named.items()}
    if "train" not in splits:
        raise DataError(f"{folders.get('train', path)} holds no file: {_GIVE}")
    return _TextListing(splits, [], _note_beside(beside))


def _reader_of(file: Path, *, by_class: bool) -> Read:
    """Return what reads a file of lines. Raise DataError if it can't be read, or if its lines have no classes."""
    if fault := find_file_fault(file):
        raise DataError(f"data.path={file} {fault}: {_GIVE}")
    check_is_no_table(file, "data.path")
    if by_class:
        raise DataError(
            f"data.path={file} has a text a line, and no classes: {_BY_CLASS}, or train with task=masked_tokens"
        )
    return partial(read_lines, file)


def _read_files(files: Iterable[tuple[str, Path]]) -> Iterator[Text]:
    return (read_file(file, kind) for kind, file in files)


def _visible(folder: Path) -> list[Path]:
    """Return the entries that are not hidden, by name. Raise DataError for a name that can't be used."""
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    for entry in entries:
        check_name(entry)
    return entries


def _find_split_files(folder: Path) -> dict[str, Path]:
    """Return the files of splits, such as train.txt and test.txt; none unless a folder holds these alone."""
    entries = _visible(folder)
    found = {split: entry for entry in entries if entry.is_file() and (split := find_split(entry.stem))}
    return found if "train" in found and len(found) > 1 and len(found) == len(entries) else {}


def _find_split_folders(root: Path, *, by_class: bool) -> dict[str, Path]:
    """Return the folder of each split, or the folder itself as that to train on.

    Raises:
        DataError: There are two folders of a split, none to train on, or no class folder in it.
    """
    tops, splits = [entry for entry in _visible(root) if entry.is_dir()], dict[str, Path]()
    for folder in tops:
        if split := find_split(folder.name):
            if split in splits:
                raise DataError(f"{root} has {splits[split].name}/ and {folder.name}/: keep one of them")
            splits[split] = folder
    if not splits or (len(splits) < len(tops) and not ("train" in splits and len(splits) > 1)):
        return {"train": root}
    if "train" not in splits:
        raise DataError(
            f"{root} has {list_first([top.name for top in tops])}, named after splits, and no train: give the texts to "
            "train on that name"
        )
    if by_class and not any(entry.is_dir() for entry in _visible(splits["train"])):
        raise DataError(f"{splits['train']} has no class folder: {_BY_CLASS}")
    return splits


def _list_classes(root: Path, folders: dict[str, Path]) -> _TextListing:
    """Return the texts of class folders. The sorted names of those to train on are the classes."""
    listings: dict[str, list[tuple[str, Path]]] = {}
    beside: list[Path] = []
    for split, folder in folders.items():
        tops = _visible(folder)
        beside += [top for top in tops if not top.is_dir()]
        listings[split] = [(normal_form(top.name), file) for top in tops if top.is_dir() for file in walk_files(top)]
    classes = sorted({kind for kind, _ in listings["train"]})
    for top in (top for top in _visible(folders["train"]) if top.is_dir()):
        if normal_form(top.name) not in classes:
            raise DataError(f"class folder {top} holds no file: add some, or remove the folder")
    if len(classes) < 2:
        raise DataError(
            f"{folders['train']} has {len(classes)} class folder(s) with texts: it takes two or more to tell apart; "
            f"{_BY_CLASS}"
        )
    for split, listing in listings.items():
        if unknown := sorted({kind for kind, _ in listing} - set(classes)):
            raise DataError(
                f"{folders[split]} has the class {list_first(unknown)}, which {folders['train'].name}/ lacks (it has "
                f"{list_first(classes)}): give each class texts to train on, or move its {split} texts away"
            )
    unlabelled = [folders[split] for split, listing in listings.items() if not listing]
    notes = [f"{folder}/ has no class folder with texts, and is not read" for folder in unlabelled]
    beside += _list_beside(root, folders)
    return _TextListing(
        {split: partial(_read_files, listing) for split, listing in listings.items() if listing},
        classes,
        [*notes, *_note_beside(beside)],
    )


def _list_beside(root: Path, folders: dict[str, Path]) -> list[Path]:
    """Return what else is in a folder that holds those of splits."""
    return [] if root in folders.values() else [entry for entry in _visible(root) if entry not in folders.values()]


def _note_beside(entries: list[Path]) -> list[str]:
    return [f"not read, as it is beside the folders of the texts: {list_first(entries)}"] if entries else []
