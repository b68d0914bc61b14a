"""data=table: images, texts or numbers, with their labels in a table that has a row for each."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from accumtrain.console import format_things
from accumtrain.data.config import TableConfig
from accumtrain.data.holdout import hold_out_evenly, hold_out_groups, holdout_size
from accumtrain.data.inputs.arrays import Arrays
from accumtrain.data.inputs.tokens import Tokens
from accumtrain.data.local_files import list_first, readable
from accumtrain.data.source import ArraySplit, Source, Wanted, hash_arrays, hash_texts
from accumtrain.data.sources.folder import SPLIT_NAMES, Listing, find_split, make_encoded_source, make_source
from accumtrain.data.stream import UNREADABLE
from accumtrain.data.table.choose import choose_columns
from accumtrain.data.table.columns import SPLITS, Rows, iterate_texts, open_all, read_inputs, read_rows, read_texts
from accumtrain.data.table.files import (
    ColumnSplit,
    Folders,
    check_images,
    find_files,
    join_labels,
    merge_doubled,
)
from accumtrain.data.table.image_files import PathList, make_texts
from accumtrain.data.table.reader import Table
from accumtrain.data.targets.base import TargetReader, Targets
from accumtrain.data.targets.cells import CellRules
from accumtrain.data.targets.classes import ClassTargets
from accumtrain.data.targets.labels import LabelTargets
from accumtrain.data.targets.lists import WHOLE
from accumtrain.data.targets.numbers import are_numbers
from accumtrain.data.text.config import DocumentRows
from accumtrain.data.text.encode import check_some_are_usable, encode_texts
from accumtrain.data.text.texts import check_memory
from accumtrain.data.text.tokens import Content, find_vocabulary, make_token_source
from accumtrain.errors import ConfigError, DataError
from accumtrain.fields import format_value

_LISTED = 5  # names in a message


def open_table(config: TableConfig, wanted: Wanted) -> Source:
    """Return the examples that tables name or hold, in splits.

    The splits are those of a column, or of several tables. Otherwise a part is held out to test on: of each class, or
    of all examples if the targets are no classes. For a trained run all rows are one split.

    Raises:
        ConfigError: A key does not go with the task.
        DataError: A table or an image can't be read, a cell holds no target, an image has two, or all are of one class.
    """
    reader = _with_keys(config, wanted.reader)
    with readable():
        tables, folders = open_all(config), Folders()
        own, chosen_columns = choose_columns(config, reader, folders, tables[0][1])
        _check_tokens(own, reader, wanted.rows)
        examples = _read_examples(own, reader, tables, folders, chosen_columns)
    targets = examples.targets
    if wanted.of_run is not None:
        return _make_source(examples, {"train": examples.order}, examples.notes, own, wanted)
    if reader is not None and targets.values.ndim == 1 and targets.count < 2:
        raise DataError(
            f"{config.path} has the single class {list_first(targets.names)}: it takes two or more to tell apart; "
            "data.label_column=<name> says which column has the labels"
        )
    chosen = _choose_splits(examples, config)
    notes = [*examples.notes, *_describe_absent(examples, chosen)]
    source = _make_source(examples, chosen, notes, own, wanted)
    if isinstance(source.inputs, Tokens) and own.text_column != config.text_column:
        return replace(source, inputs=replace(source.inputs, column=str(own.text_column)))
    return source


# ---- the examples that have a target ----


@dataclass(frozen=True)
class _Examples:
    """N examples that have a target; of image files each once.

    Attributes:
        rows: All rows.
        chosen: int32 [N], the indices of the rows of the examples.
        targets: Those of the N examples.
        names: Texts [N]; of images in the tables the indices of their rows. They decide what is held out. None of texts
            and numbers, of which it is evenly spaced.
        folder: The folder from which `paths` begin.
        paths: Texts [N]; None if the rows hold the examples.
        splits: The index of each example's split in SPLITS, int8 [N]; None if a part is to be held out.
        groups: The number of each example's group, int32 [N]; None without data.group.
        group_names: The names of the groups.
        notes: About what was left out, for the user.
    """

    rows: Rows
    chosen: np.ndarray
    targets: Targets
    names: pa.ChunkedArray | None
    folder: Path
    paths: pa.ChunkedArray | None
    splits: np.ndarray | None
    groups: np.ndarray | None
    group_names: list[str]
    notes: list[str]

    @property
    def classes(self) -> np.ndarray:
        """The class of each example, integers [N]; 0 for all if the targets are no classes."""
        values = self.targets.values
        return values if values.ndim == 1 else np.zeros(len(values), np.int32)

    @property
    def order(self) -> np.ndarray:
        """The indices of all examples, int32 [N]: of images by class and name, of others as they are."""
        return np.arange(len(self.chosen), dtype=np.int32) if self.names is None else self.by_class

    @property
    def by_class(self) -> np.ndarray:
        """The indices of all examples, int32 [N], by class and name."""
        by_name = np.arange(len(self.chosen), dtype=np.int32)
        if self.names is not None:
            by_name = pc.sort_indices(self.names).to_numpy().astype(np.int32)
        return by_name[np.argsort(self.classes[by_name], kind="stable")]

    def locate(self, index: int) -> str:
        """Return the row of an example in words."""
        return self.rows.locate(int(self.chosen[index]))

    def describe(self, index: int) -> str:
        """Return the file of an example, or its row."""
        return self.locate(index) if self.paths is None else str(self.folder / self.paths[index].as_py())

    def cells(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return those of the examples in a column of all rows."""
        if len(self.chosen) == len(column):
            return column
        mask = np.zeros(len(column), bool)
        mask[self.chosen] = True
        return column.filter(pa.array(mask))  # by chunks, as `take` puts all of them together first


def _read_examples(
    config: TableConfig,
    reader: TargetReader | None,
    tables: Sequence[tuple[str, Table]],
    folders: Folders,
    chosen_columns: Sequence[str],
) -> _Examples:
    """Return the examples that have a target.

    Args:
        tables: From `open_all`.
        chosen_columns: Notes of the columns that no key of the user names.

    Raises:
        OSError: A folder can't be read.
        ConfigError, DataError: As `open_table`.
    """
    rows, unknown, missing = read_rows(config, reader, tables), None, list[str]()
    if config.rows == "labels" and reader is not None:
        missing = reader.note_missing(rows.labels)
        rows, unknown = join_labels(rows, folders, config)
    targets = _no_targets(rows) if reader is None else reader.read_columns(rows.labels, rows.locate)
    if unknown is not None:
        targets.values[unknown] = np.nan
    known = np.flatnonzero(targets.known).astype(np.int32)
    if not len(known):
        columns, table = rows.parts[0].columns, rows.parts[0].table
        raise DataError(
            f"{table.path}: no row has a label in column {', '.join(map(table.describe, columns.labels))}; write them "
            "into it, or data.label_column=<name> says where they are"
        )
    are_images = config.text_column is None and config.number_columns is None
    are_files = are_images and not rows.hold_images
    rows = replace(rows, labels={})  # they take memory
    notes = [*chosen_columns, *missing, *_note_unlabelled(rows, targets, of_files=are_files), *targets.notes]
    notes += [] if config.number_columns is None else _note_names(rows)
    splits = _number_splits(rows, known)
    groups, group_names = _number_groups(rows, known)
    kept, names, folder, paths = np.arange(len(known), dtype=np.int32), None, Path(), None
    if are_images:
        check_images(rows, known)
        names = make_texts(f"{row:012}" for row in known)
    if are_files:
        if not isinstance(config.image_column, str):
            _check_header(rows, folders)
        names = _take(rows.inputs[0], known)
        folder, paths, numbers = find_files(rows, names, known, folders, config)
        _mark_unlabelled(rows, targets, folders)
        kept = merge_doubled(rows, targets, names, known, numbers, (splits, groups), reader)
        notes += [*(_note_doubled(names, kept) if config.rows == "examples" else []), *_note_unused(folders)]
        names, paths = _take(names, kept), _take(paths, kept)
        rows = replace(rows, inputs=[])
    chosen = known[kept]
    return _Examples(
        rows=replace(rows, splits=None, groups=None),
        chosen=chosen,
        targets=targets if len(chosen) == len(targets.values) else replace(targets, values=targets.values[chosen]),
        names=names,
        folder=folder,
        paths=paths,
        splits=None if splits is None else splits[kept],
        groups=None if groups is None else groups[kept],
        group_names=group_names,
        notes=notes,
    )


def _with_keys(config: TableConfig, reader: TargetReader | None) -> TargetReader | None:
    """Return the reader with the keys of the table. Raise ConfigError for a key that is for other targets."""
    for key in () if isinstance(reader, LabelTargets) else ("rows", "label_separator"):
        allowed = {getattr(TableConfig, key), *([WHOLE] if isinstance(reader, ClassTargets) else [])}
        if (value := getattr(config, key)) not in allowed:
            raise ConfigError(f"data.{key}={value}: is for several labels of an example; choose task=multilabel")
    return reader and replace(reader, rules=CellRules.of(config))


def _check_tokens(config: TableConfig, reader: TargetReader | None, rows: DocumentRows | None) -> None:
    """Raise ConfigError if tokens are learned without one column of texts, or prompts are given for another task."""
    if config.prompt_column is not None and rows is None:
        raise ConfigError(
            f"data.prompt_column={config.prompt_column}: is for task=next_token, which learns the answers to prompts; "
            "leave it out, or give pairs of texts, 'data.text_column=[<name>,<name>]'"
        )
    if reader is None and (config.text_column is None or isinstance(config.text_column, list)):
        raise ConfigError(
            f"data.text_column={format_value(config.text_column)}: the tokens of texts are learned; name one column of "
            "texts"
        )


def _no_targets(rows: Rows) -> Targets:
    return Targets(np.zeros(len(rows.inputs[0]), np.int32), [], 0)


def _take(texts: pa.ChunkedArray, indices: np.ndarray) -> pa.ChunkedArray:
    """Return the texts at indices that increase; the column itself if these are all."""
    return texts if len(indices) == len(texts) else texts.take(pa.array(indices))


def _check_header(rows: Rows, folders: Folders) -> None:
    """Raise DataError if the row of the names of a table names a file."""
    for part in rows.parts:
        (name,) = part.columns.inputs
        if part.table.header and folders[part.folder].holds(name):
            raise DataError(
                f"{part.table.path}: the first row names the columns, and {name} is a file: set data.header=false if "
                "it holds an image and its label, or give the name of the column, data.image_column=<name>"
            )


def _note_names(rows: Rows) -> list[str]:
    """Return a note if the columns of a table are called by whole numbers, such as years.

    Raises:
        DataError: They are called by other numbers, which an example has.
    """
    called = [part for part in rows.parts if part.table.header and are_numbers(part.columns.inputs)]
    for part in called:
        if not all(name.isdecimal() for name in part.columns.inputs):
            raise DataError(
                f"{part.table.path}: the first row names the columns, and {list_first(part.columns.inputs)} are "
                "numbers: set data.header=false if it is an example, or give the columns other names"
            )
    return [
        f"{part.table.path}: the columns are called {list_first(part.columns.inputs)}; if that is an example, set "
        "data.header=false"
        for part in called
    ]


def _note(counted: str, names: pa.ChunkedArray, indices: np.ndarray) -> str:
    first = names.take(pa.array(indices[: _LISTED + 1])).to_pylist()
    return f"{counted}: {list_first([name or '' for name in first])}"


def _note_unlabelled(rows: Rows, targets: Targets, *, of_files: bool) -> list[str]:
    unlabelled = np.flatnonzero(~targets.known)
    if not len(unlabelled):
        return []
    counted = format_things(len(unlabelled), "row without a label is left out", "rows without a label are left out")
    if of_files:
        return [_note(counted, rows.inputs[0], unlabelled)]
    return [f"{counted}: {list_first([rows.locate(row) for row in unlabelled[: _LISTED + 1].tolist()])}"]


def _mark_unlabelled(rows: Rows, targets: Targets, folders: Folders) -> None:
    """Take the images of rows without a label as used: they are in the table."""
    for part in rows.parts:
        own = slice(part.first, part.first + part.table.rows)
        unlabelled = rows.inputs[0][own].filter(pa.array(~targets.known[own]))
        if len(unlabelled):
            folders[part.folder].mark_named(unlabelled)


def _note_doubled(names: pa.ChunkedArray, kept: np.ndarray) -> list[str]:
    doubled = np.setdiff1d(np.arange(len(names)), kept, assume_unique=True)
    counted = format_things(len(doubled), "image stands", "images stand")
    return [_note(f"{counted} in the table more than once, read once", names, doubled)] if len(doubled) else []


def _note_unused(folders: Folders) -> list[str]:
    notes = []
    for files in folders.values():
        count, first = files.list_unused()
        if count:
            unused = format_things(count, "image is not in the table, and is", "images are not in the table, and are")
            notes.append(f"{unused} left out: {list_first(first)}")
    return notes


def _number_splits(rows: Rows, chosen: np.ndarray) -> np.ndarray | None:
    """Return the index of each example's split in SPLITS, int8 [N]; None if a part is to be held out."""
    if rows.splits is None:
        if len(rows.parts) == 1:
            return None
        of_parts = np.array([SPLITS.index(part.split) for part in rows.parts], np.int8)
        return of_parts[np.searchsorted([part.first for part in rows.parts], chosen, "right") - 1]
    words = rows.splits.take(pa.array(chosen))
    found = {word: find_split(word) if word else None for word in words.unique().to_pylist()}
    for word, split in found.items():
        if split is None:
            first = pc.index(words.is_null() if word is None else pc.equal(words, word), True).as_py()
            known = ", ".join(name for names in SPLIT_NAMES.values() for name in names)
            raise DataError(f"{rows.locate(int(chosen[first]))}: the split is {word or 'empty'}; write one of {known}")
    numbers = pc.index_in(words, value_set=pa.array(list(found), pa.string())).to_numpy()
    return np.array([SPLITS.index(str(split)) for split in found.values()], np.int8)[numbers]


def _number_groups(rows: Rows, chosen: np.ndarray) -> tuple[np.ndarray | None, list[str]]:
    """Return the number of each example's group, int32 [N], and the names of the groups."""
    if rows.groups is None:
        return None, []
    groups = rows.groups.take(pa.array(chosen))
    if groups.null_count:
        first = pc.index(groups.is_null(), True).as_py()
        raise DataError(f"{rows.locate(int(chosen[first]))}: the group is empty; write one, or leave data.group out")
    names = sorted(groups.unique().to_pylist())
    return pc.index_in(groups, value_set=pa.array(names, pa.string())).to_numpy().astype(np.int32), names


# ---- splits ----


def _choose_splits(examples: _Examples, config: TableConfig) -> dict[str, np.ndarray]:
    """Return the indices of the examples of train, and of val or test or both, in their order."""
    order = examples.order
    if examples.splits is None:
        held = _hold_out(examples, config.test_fraction)
        return {"train": order[~held[order]], "test": order[held[order]]}
    chosen = {name: order[examples.splits[order] == number] for number, name in enumerate(SPLITS)}
    chosen = {name: indices for name, indices in chosen.items() if len(indices)}
    if "train" not in chosen or len(chosen) == 1:
        raise DataError(
            f"{config.path}: all examples with a label are in the split {list_first(list(chosen))}: give some to train "
            "on, and others to validate or to test on"
        )
    if examples.groups is not None:
        _check_whole_groups(examples, chosen, config)
    trained = np.unique(examples.classes[chosen["train"]])
    for name, indices in chosen.items():
        unknown = np.flatnonzero(~np.isin(examples.classes[indices], trained))
        if len(unknown):
            index = int(indices[unknown[0]])
            raise DataError(
                f"{examples.locate(index)}: the class {examples.targets.describe(index)} of a {name} example has none "
                "to train on: add some, or remove its rows"
            )
    return chosen


def _check_whole_groups(examples: _Examples, chosen: Mapping[str, np.ndarray], config: TableConfig) -> None:
    """Raise DataError if a group has examples in two splits."""
    assert examples.groups is not None
    first = np.full(len(examples.group_names), -1)
    for name, indices in chosen.items():
        own = examples.groups[indices]
        torn = np.flatnonzero(first[own] >= 0)
        if len(torn):
            group, index = examples.group_names[own[torn[0]]], int(indices[torn[0]])
            raise DataError(
                f"{examples.locate(index)}: data.group={config.group}: {group} is in the split {name} and, by "
                f"{examples.locate(int(first[own[torn[0]]]))}, in another: keep a group together, or leave data.group "
                "out"
            )
        first[own] = indices


def _hold_out(examples: _Examples, fraction: float) -> np.ndarray:
    """Return a mask of the test examples: `holdout_size` of each class; or groups, whose names have small checksums.

    Of images those are held out whose names have the smallest CRC-32, so the split is the same on every machine and for
    every seed. Others are evenly spaced.

    Raises:
        DataError: There are too few examples.
    """
    classes = examples.classes
    if examples.groups is not None:
        checksums = [zlib.crc32(name.encode()) for name in examples.group_names]
        held = hold_out_groups(examples.groups, np.argsort(checksums, kind="stable"), fraction, classes)
        if not held.any():
            raise DataError(
                f"{list_first(examples.group_names)}: no group can be held out so that each class has examples left to "
                "train on: add groups, or say which are held out by data.split_column or data.test_path"
            )
        return held
    order, by_hash = examples.by_class, None
    if examples.names is not None:
        hashes = (zlib.crc32(name.encode()) for name in iterate_texts(examples.names))
        by_hash = np.fromiter(hashes, np.uint32, len(classes))
    held = np.zeros(len(classes), bool)
    for of_class in np.split(order, np.flatnonzero(np.diff(classes[order])) + 1):
        if len(of_class) < 2:
            index = int(of_class[0])
            of_one = examples.targets.values.ndim == 1 and examples.targets.count
            remedy = "add one, or remove the class" if of_one else "add one"
            if of_one and are_numbers(examples.targets.names):
                remedy += "; or did you mean task=regress, as the classes are numbers, or another data.label_column?"
            raise DataError(
                f"{f'class {examples.targets.describe(index)}' if of_one else 'the table'} has a single example, "
                f"{examples.describe(index)}: it takes two, to train and to test; {remedy}"
            )
        if by_hash is None:
            held[of_class[hold_out_evenly(len(of_class), fraction)]] = True
        else:
            smallest = np.argsort(by_hash[of_class], kind="stable")
            held[of_class[smallest[: holdout_size(len(of_class), fraction)]]] = True
    return held


def _describe_absent(examples: _Examples, chosen: Mapping[str, np.ndarray]) -> list[str]:
    """Return notes of the classes that a split lacks, and of labels or numbers that training never tells."""
    targets = examples.targets
    if targets.values.ndim > 1:
        unknown = np.isnan(targets.values[chosen["train"]]).all(axis=0)
        absent = [name for name, is_unknown in zip(targets.names, unknown, strict=True) if is_unknown]
        return [f"no training example has a value for {list_first(absent)}"] if absent else []
    notes = []
    for split, indices in chosen.items():
        counts = np.bincount(targets.values[indices], minlength=targets.count)
        if absent := [name for name, count in zip(targets.names, counts.tolist(), strict=False) if not count]:
            notes.append(f"the split {split} has no examples of {list_first(absent)}")
    return notes


# ---- the source ----


def _make_source(
    examples: _Examples,
    chosen: Mapping[str, np.ndarray],
    notes: Sequence[str],
    config: TableConfig,
    wanted: Wanted,
) -> Source:
    if config.text_column is not None:
        return _make_texts(examples, chosen, notes, config, wanted)
    if config.number_columns is not None:
        source = _make_numbers(examples, chosen, notes, config, wanted)
    else:
        source = _make_images(examples, chosen, notes, config)
    if examples.groups is not None:
        source.train.groups = examples.groups[chosen["train"]]
    return source


def _make_texts(
    examples: _Examples,
    chosen: Mapping[str, np.ndarray],
    notes: Sequence[str],
    config: TableConfig,
    wanted: Wanted,
) -> Source:
    columns, vocabulary = examples.rows.inputs, find_vocabulary(config, wanted)
    if isinstance(config.text_column, list) and not vocabulary.template.separates:
        raise ConfigError(
            f"data.text_column={format_value(config.text_column)}: data.tokenizer={config.tokenizer} puts no token "
            "between the texts of a pair; give one whose post-processor does, or write both into one column"
        )
    check_memory(Path(config.path), sum(column.nbytes for column in columns))
    texts = read_texts([examples.cells(column) for column in columns], examples.locate)
    encoded, _ = encode_texts(texts, vocabulary.tokenize, vocabulary.template, skips=config.on_error == "skip")
    check_some_are_usable(encoded)
    targets = examples.targets
    labels = targets.values.copy()
    labels[list(encoded.faults)] = UNREADABLE if labels.ndim == 1 else np.nan
    encoded = replace(encoded, labels=labels, groups=examples.groups)
    splits = {name: encoded.take(indices) for name, indices in chosen.items()}
    content = Content(config.path, vocabulary, splits, targets.names, targets.count, list(notes))
    return make_token_source(config, content, wanted)


def _make_numbers(
    examples: _Examples,
    chosen: Mapping[str, np.ndarray],
    notes: Sequence[str],
    config: TableConfig,
    wanted: Wanted,
) -> Source:
    names = examples.rows.parts[0].columns.inputs
    columns = {name: examples.cells(column) for name, column in zip(names, examples.rows.inputs, strict=True)}
    trained = chosen["train"] if wanted.of_run is None else None
    numbers, targets = read_inputs(columns, examples.locate, CellRules.of(config), trained), examples.targets
    splits = {name: (numbers[indices], targets.values[indices]) for name, indices in chosen.items()}
    opened = {name: ArraySplit(*arrays) for name, arrays in splits.items()}
    for name, indices in chosen.items():
        opened[name].locate = examples.rows.make_locate(examples.chosen[indices])
    return Source(
        opened["train"],
        opened.get("test"),
        targets.count,
        list(notes),
        class_names=targets.names,
        val=opened.get("val"),
        fingerprint={f"data.{name}.rows": hash_arrays(*arrays) for name, arrays in splits.items()},
        inputs=Arrays((len(names),), tuple(names)),
    )


def _make_images(
    examples: _Examples, chosen: Mapping[str, np.ndarray], notes: Sequence[str], config: TableConfig
) -> Source:
    names = examples.targets.names
    if examples.paths is not None:
        listings = {name: _list_files(examples, indices) for name, indices in chosen.items()}
        return make_source(listings, names, notes, config)
    rows = examples.rows
    splits = {
        name: ColumnSplit(
            rows.inputs[0], examples.chosen[indices], examples.targets.values[indices], rows.locate, config
        )
        for name, indices in chosen.items()
    }
    digests = {
        name: hash_texts(
            f"{text} {size}"
            for text, size in zip(_name_all(examples, chosen[name]), split.stored_sizes.tolist(), strict=True)
        )
        for name, split in splits.items()
    }
    return make_encoded_source(splits, names, notes, digests, config)


def _list_files(examples: _Examples, indices: np.ndarray) -> Listing:
    def locate(index: int) -> str:
        return f"{examples.locate(int(indices[index]))}: "

    assert examples.paths is not None
    paths = examples.paths.take(pa.array(indices)).combine_chunks()
    files = PathList(examples.folder, paths)
    return Listing(files, examples.targets.values[indices], _name_all(examples, indices), locate)


def _name_all(examples: _Examples, indices: np.ndarray) -> Iterator[str]:
    """Yield the name of each image after its class or its targets."""
    assert examples.names is not None
    for index, name in zip(indices.tolist(), iterate_texts(examples.names.take(pa.array(indices))), strict=True):
        yield f"{examples.targets.describe(index)}/{name}"
