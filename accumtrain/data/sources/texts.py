"""data=texts: texts of one's own as files, of a class each, or with their tokens as targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from accumtrain.data.config import TableConfig, TextsConfig, TokenKeys
from accumtrain.data.local_files import (
    check_name,
    check_unpacked,
    find_file_fault,
    iterate_visible,
    list_first,
    readable,
    walk_files,
)
from accumtrain.data.source import Source, Wanted
from accumtrain.data.sources.folder import SPLIT_NAMES, find_split, list_other_words
from accumtrain.data.stream import UNREADABLE
from accumtrain.data.table.reader import open_tables
from accumtrain.data.table.source import open_table
from accumtrain.data.text.encode import Encoded, check_some_are_usable, encode_texts
from accumtrain.data.text.texts import TABLES, Text, check_is_no_table, read_file, read_lines
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
    of each class; of texts for a trained run none. Files that are tables are read as by data=table.

    Raises:
        ConfigError: A key does not go with the data, or the tokenizer can't be opened.
        DataError: The data can't be read, or in two ways; a text can't be used, or there is a single class.
    """
    by_class = wanted.reader is not None
    with readable():
        files, notes = _find_files(Path(config.path), by_class=by_class)
        if files and (tables := _as_tables(config, files, by_class=by_class)):
            opened = open_table(tables, wanted)
            return replace(opened, notes=[*notes, *opened.notes])
        listing = _list_texts(config, files, notes, by_class=by_class)
    vocabulary = find_vocabulary(config, wanted)
    content = _read_content(config, listing, vocabulary, by_class=by_class)
    return make_token_source(config, content if wanted.of_run else divide(content, config.test_fraction), wanted)


def _read_content(config: TextsConfig, listing: _TextListing, vocabulary: Vocabulary, *, by_class: bool) -> Content:
    skips = config.on_error == "skip"
    splits = {}
    for split, texts in listing.splits.items():
        encoded, kinds = encode_texts(texts(), vocabulary.tokenize, vocabulary.template, skips=skips)
        check_some_are_usable(encoded)
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


def _list_texts(config: TextsConfig, files: dict[str, Path], notes: list[str], *, by_class: bool) -> _TextListing:
    """Return the texts that data.path names.

    Args:
        files: Those of splits, each with a text a line; none of a folder of texts.
        by_class: The texts have classes. Without, a folder of any depth is read.

    Raises:
        DataError: There is no text, or the folder has another structure.
    """
    path = Path(config.path)
    if files:
        if by_class:
            raise DataError(
                f"{files['train']} has a text a line, and no classes: {_BY_CLASS}, or train with "
                "task=next_token or task=masked_tokens"
            )
        return _TextListing({split: partial(read_lines, file) for split, file in files.items()}, [], notes)
    folders = _find_split_folders(path, by_class=by_class)
    if by_class:
        return _list_classes(path, folders)
    found = {split: list(walk_files(folder)) for split, folder in folders.items()}
    if not found["train"]:
        raise DataError(f"{folders['train']} holds no file: {_GIVE}")
    beside = _list_beside(path, folders)
    named = {split: [("", file) for file in files] for split, files in found.items() if files}
    splits: dict[str, Read] = {split: partial(_read_files, files) for split, files in named.items()}
    return _TextListing(splits, [], [*_note_kinds(chain.from_iterable(found.values())), *_note_beside(beside)])


def _read_files(files: Iterable[tuple[str, Path]]) -> Iterator[Text]:
    return (read_file(file, kind) for kind, file in files)


def _note_kinds(files: Iterable[Path]) -> list[str]:
    """Return a note of the endings of files that are read as texts, if they differ. Raise DataError for a table."""
    counts = Counter[str]()
    for file in files:
        if file.suffix.lower() in TABLES and (hint := _hint_at_splits(file.parent)):
            raise DataError(f"{file.parent} has tables, whose lines are no texts{hint}, or move them away")
        check_is_no_table(file, "data.path")
        counts[file.suffix] += 1
    if len(counts) < 2:
        return []
    kinds = ", ".join(f"{count:,} {suffix or 'without ending'}" for suffix, count in counts.most_common())
    return [f"files with different endings are read as texts: {kinds}"]


# ---- files of splits ----


def _find_files(path: Path, *, by_class: bool) -> tuple[dict[str, Path], list[str]]:
    """Return the files of splits, and a note of those beside them; none of a folder of texts.

    They are named alike but for the words of the splits, such as train.txt and test.txt. One is to train on.

    Raises:
        DataError: The folder can be read in two ways, or a file can't be read.
    """
    if not path.is_dir():
        _check_file(path)
        return {"train": path}, []
    entries = _visible(path)
    folders = [entry for entry in entries if entry.is_dir()]
    named = [entry for entry in entries if entry not in folders and find_split(entry.stem)]
    are_tables = any(file.suffix.lower() in TABLES for file in named)
    classes = [folder for folder in folders if by_class and any(walk_files(folder))]
    if not named or (classes and not are_tables):  # lines have no classes
        return {}, []
    sets = dict[Sequence[str], dict[str, list[Path]]]()
    for file in named:
        of_set = sets.setdefault(list_other_words(file.stem), {})
        of_set.setdefault(str(find_split(file.stem)), []).append(file)
    whole = [of_set for of_set in sets.values() if "train" in of_set and len(of_set) > 1]
    is_whole = len(whole) == 1 and all(len(files) == 1 for files in whole[0].values())
    splits = [folder for folder in folders if _is_split(folder)]
    if not is_whole or len(classes) > 1 or splits:
        may_be_texts = not (by_class or are_tables)
        raise DataError(
            f"{path} can be read in more than one way. {_list_readings(path, [*named, *splits], classes, may_be_texts)}"
        )
    files = {split: whole[0][split][0] for split in SPLIT_NAMES if split in whole[0]}
    for file in files.values():
        _check_file(file)
    return files, _note_beside([entry for entry in entries if entry not in files.values()], "files of the splits")


def _list_readings(path: Path, named: list[Path], classes: list[Path], may_be_texts: bool) -> str:
    """Return what the entries named after splits may mean beside the folders of classes, with the remedy of each."""
    as_splits = (
        f"If {list_first([_show(entry) for entry in named])} are splits, make one file of each, with names that are "
        "alike otherwise, such as train.jsonl and test.jsonl, or give a single one as data.path"
    )
    if len(classes) > 1:
        folders = list_first([_show(folder) for folder in classes])
        return f"{as_splits}, and move {folders} away. If {folders} are classes or splits, move these files away"
    as_texts = f". If each file is a text, move all of them into a folder in {path.name}/" if may_be_texts else ""
    return as_splits + as_texts


def _show(entry: Path) -> str:
    return f"{entry.name}/" if entry.is_dir() else entry.name


def _check_file(file: Path) -> None:
    """Raise DataError for a file that can't be read as texts."""
    if fault := find_file_fault(file):
        raise DataError(f"data.path={file} {fault}: {_GIVE}")


def _hint_at_splits(folder: Path) -> str:
    """Return the remedy for tables in a folder that are named after splits; empty if there are none."""
    splits = [file.name for file in _visible(folder) if file.suffix.lower() in TABLES and find_split(file.stem)]
    return f": if {list_first(splits)} are splits, give data.path={folder}" if splits else ""


def _is_split(folder: Path) -> bool:
    return find_split(folder.name) is not None


def _as_tables(config: TextsConfig, files: Mapping[str, Path], *, by_class: bool) -> TableConfig | None:
    """Return the keys of tables of texts; None if the files are none.

    Raises:
        DataError: Some are tables and some not, or their columns are not called text and label.
    """
    are_tables = {file.suffix.lower() in TABLES for file in files.values()}
    if len(are_tables) > 1:
        raise DataError(
            f"{list_first(list(files.values()))}: some are tables and some are not: save all in the same way"
        )
    if not are_tables.pop():
        for file in files.values():
            check_is_no_table(file, "data.path")
            check_unpacked(file, "data.path")
        return None
    columns = {"text_column": "text", **({"label_column": "label"} if by_class else {})}
    paths = {"path" if split == "train" else f"{split}_path": str(file) for split, file in files.items()}
    for table in open_tables(files["train"], "data.path").values():
        if not set(columns.values()) <= set(table.names):
            given = [*(f"data.{key}={path}" for key, path in paths.items()), *(f"data.{key}=<name>" for key in columns)]
            raise DataError(
                f"{files['train']} is a table with the columns {', '.join(table.names)}: say which of them hold what, "
                f"data=table {' '.join(given)}"
            )
    keys: dict[str, Any] = {key.name: getattr(config, key.name) for key in fields(TokenKeys) if key.name != "kind"}
    return TableConfig(**(keys | paths | columns), test_fraction=config.test_fraction)


# ---- folders ----


def _visible(folder: Path) -> list[Path]:
    """Return the entries that are not hidden, by name. Raise DataError for a name that can't be used."""
    entries = sorted(iterate_visible(folder))
    for entry in entries:
        check_name(entry)
    return entries


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
        entries = _visible(folder)
        beside += [entry for entry in entries if not entry.is_dir()]
        listings[split] = [(normal_form(top.name), file) for top in entries if top.is_dir() for file in walk_files(top)]
    classes = sorted({kind for kind, _ in listings["train"]})
    tops = [top for top in _visible(folders["train"]) if top.is_dir()]
    for top in tops:
        if normal_form(top.name) not in classes:
            raise DataError(f"class folder {top} holds no file: add some, or remove the folder")
    if len(classes) < 2:
        raise DataError(
            f"{folders['train']} has {len(classes)} class folder(s) with texts: it takes two or more to tell apart; "
            f"{_BY_CLASS}{''.join(map(_hint_at_splits, tops))}"
        )
    for split, listing in listings.items():
        if unknown := sorted({kind for kind, _ in listing} - set(classes)):
            raise DataError(
                f"{folders[split]} has the class {list_first(unknown)}, which {folders['train'].name}/ lacks (it has "
                f"{list_first(classes)}): give each class texts to train on, or move its {split} texts away"
            )
    kinds = _note_kinds(file for listing in listings.values() for _, file in listing)
    unlabelled = [folders[split] for split, listing in listings.items() if not listing]
    notes = [f"{folder}/ has no class folder with texts, and is not read" for folder in unlabelled]
    beside += _list_beside(root, folders)
    return _TextListing(
        {split: partial(_read_files, listing) for split, listing in listings.items() if listing},
        classes,
        [*notes, *kinds, *_note_beside(beside)],
    )


def _list_beside(root: Path, folders: dict[str, Path]) -> list[Path]:
    """Return what else is in a folder that holds those of splits."""
    return [] if root in folders.values() else [entry for entry in _visible(root) if entry not in folders.values()]


def _note_beside(entries: list[Path], of: str = "folders of the texts") -> list[str]:
    return [f"not read, as it is beside the {of}: {list_first(entries)}"] if entries else []
