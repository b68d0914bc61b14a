"""data=table: images whose labels stand in a table, which has a row for each image."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from accumtrain.data.config import TableConfig
from accumtrain.data.holdout import hold_out_groups, holdout_size
from accumtrain.data.local_files import list_first, readable
from accumtrain.data.source import Source, hash_texts
from accumtrain.data.sources.folder import SPLIT_NAMES, Listing, find_split, make_encoded_source, make_source
from accumtrain.data.sources.targets import ClassTargets, TargetReader, Targets
from accumtrain.data.table.columns import SPLITS, Rows, read_rows
from accumtrain.data.table.files import ColumnSplit, Folders, PathList, iterate_texts, make_texts
from accumtrain.errors import DataError

_CLASSES = ClassTargets()
_LISTED = 5  # names in a message
_FILES_OF_A_FOLDER = 2**40


def open_table(config: TableConfig, seed: int, reader: TargetReader = _CLASSES) -> Source:
    """Return the images that tables name or hold, in splits. The seed changes nothing.

    The splits are those of a column, or of several tables. Otherwise a part is held out to test on: of each class, or
    of all images if the targets are no classes.

    Args:
        reader: The way to read the targets.

    Raises:
        DataError: A table or an image can't be read, a cell holds no target, an image has two, or all are of one class.
    """
    with readable():
        examples = _read_examples(config, reader)
    targets = examples.targets
    if targets.values.ndim == 1 and targets.count < 2:
        raise DataError(
            f"{config.path} has the single class {list_first(targets.names)}: it takes two or more to tell apart; "
            "data.label_column=<name> says which column has the labels"
        )
    chosen = _choose_splits(examples, config)
    notes = [*examples.notes, *_describe_absent(examples, chosen)]
    source = _make_source(examples, chosen, notes, config)
    if examples.groups is not None:
        source.train.groups = examples.groups[chosen["train"]]
    return source


def open_whole_table(config: TableConfig, reader: TargetReader = _CLASSES) -> Source:
    """Return a source whose only split has all images of the tables. Raise what `open_table` raises."""
    with readable():
        examples = _read_examples(config, reader)
    return _make_source(examples, {"train": examples.order}, examples.notes, config)


# ---- the images that have a target ----


@dataclass(frozen=True)
class _Examples:
    """N images, each once, and with a target.

    Attributes:
        rows: All rows.
        chosen: int32 [N], the numbers of the rows of the images.
        targets: Those of the N images.
        names: Texts [N]; of images in the tables the numbers of their rows. They decide what is held out.
        folder: The folder from which `paths` begin.
        paths: Texts [N]; None if the rows hold the images.
        splits: The place of each image's split in SPLITS, int8 [N]; None if a part is to be held out.
        groups: The number of each image's group, int32 [N]; None without data.group.
        group_names: The names of the groups.
        notes: About what was left out, for the user.
    """

    rows: Rows
    chosen: np.ndarray
    targets: Targets
    names: pa.ChunkedArray
    folder: Path
    paths: pa.ChunkedArray | None
    splits: np.ndarray | None
    groups: np.ndarray | None
    group_names: list[str]
    notes: list[str]

    @property
    def classes(self) -> np.ndarray:
        """The class of each image, integers [N]; 0 for all if the targets are no classes."""
        values = self.targets.values
        return values if values.ndim == 1 else np.zeros(len(values), np.int32)

    @property
    def order(self) -> np.ndarray:
        """The places of all images, int32 [N], sorted by class and name."""
        by_name = pc.sort_indices(self.names).to_numpy().astype(np.int32)
        return by_name[np.argsort(self.classes[by_name], kind="stable")]

    def locate(self, place: int) -> str:
        """Return the row of an image in words."""
        return self.rows.locate(int(self.chosen[place]))

    def describe(self, place: int) -> str:
        """Return the file of an image, or its row."""
        return self.locate(place) if self.paths is None else str(self.folder / self.paths[place].as_py())


def _read_examples(config: TableConfig, reader: TargetReader) -> _Examples:
    """Return the images that have a target.

    Raises:
        OSError: A folder can't be read.
        DataError: As `open_table`.
    """
    rows = read_rows(config, reader)
    targets = reader.read_columns(rows.labels, rows.locate)
    known = np.flatnonzero(targets.known).astype(np.int32)
    _check_cells(rows, known)
    rows = replace(rows, labels={})  # they take memory
    notes = [*_note_unlabelled(rows, targets), *targets.notes]
    splits = _number_splits(rows, known)
    groups, group_names = _number_groups(rows, known)
    if rows.hold_images:
        names, folder, paths = make_texts(f"{row:012}" for row in known), Path(), None
        kept = np.arange(len(known), dtype=np.int32)
    else:
        names, folders = _take(rows.images, known), Folders()
        if not isinstance(config.image_column, str):
            _check_header(rows, folders)
        folder, paths, numbers = _find_files(rows, names, known, folders)
        kept = _merge_doubled(rows, targets, names, known, numbers, (splits, groups))
        notes += [*_note_doubled(names, kept), *_note_unused(folders)]
        names, paths = _take(names, kept), _take(paths, kept)
        rows = replace(rows, images=rows.images.slice(0, 0))
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


def _check_cells(rows: Rows, known: np.ndarray) -> None:
    """Raise DataError if no row has a target, or one that has lacks an image."""
    columns, table = rows.parts[0].columns, rows.parts[0].table
    if not len(known):
        raise DataError(
            f"{table.path}: no row has a label in column {', '.join(map(table.describe, columns.labels))}; write them "
            "into it, or data.label_column=<name> says where they are"
        )
    missing = np.asarray(rows.images.is_null().to_numpy())[known]
    if missing.any():
        raise DataError(
            f"{rows.locate(int(known[np.argmax(missing)]))}: there is a label, and no image in column "
            f"{table.describe(columns.image)}: write one, or remove the row"
        )


def _take(texts: pa.ChunkedArray, places: np.ndarray) -> pa.ChunkedArray:
    """Return the texts at places that increase; the column itself if these are all."""
    return texts if len(places) == len(texts) else texts.take(pa.array(places))


def _check_header(rows: Rows, folders: Folders) -> None:
    """Raise DataError if the row of the names of a table names a file."""
    for part in rows.parts:
        name = part.columns.image
        if part.table.header and folders[part.table.folder].holds(name):
            raise DataError(
                f"{part.table.path}: the first row names the columns, and {name} is a file: set data.header=false if "
                "it holds an image and its label, or give the name of the column, data.image_column=<name>"
            )


def _note(text: str, names: pa.ChunkedArray, places: np.ndarray) -> str:
    first = names.take(pa.array(places[: _LISTED + 1])).to_pylist()
    return f"{len(places):,} {text}: {list_first([name or '' for name in first])}"


def _note_unlabelled(rows: Rows, targets: Targets) -> list[str]:
    unlabelled = np.flatnonzero(~targets.known)
    if not len(unlabelled):
        return []
    text = "rows without a label are left out"
    if not rows.hold_images:
        return [_note(text, rows.images, unlabelled)]
    return [
        f"{len(unlabelled):,} {text}: {list_first([rows.locate(row) for row in unlabelled[: _LISTED + 1].tolist()])}"
    ]


def _note_doubled(names: pa.ChunkedArray, kept: np.ndarray) -> list[str]:
    doubled = np.setdiff1d(np.arange(len(names)), kept, assume_unique=True)
    text = "images stand in the table more than once, and are taken once"
    return [_note(text, names, doubled)] if len(doubled) else []


def _note_unused(folders: Folders) -> list[str]:
    notes = []
    for files in folders.values():
        count, first = files.list_unused()
        if count:
            notes.append(f"{count:,} images are not in the table, and are left out: {list_first(first)}")
    return notes


def _find_files(
    rows: Rows, names: pa.ChunkedArray, known: np.ndarray, folders: Folders
) -> tuple[Path, pa.ChunkedArray, np.ndarray]:
    """Return a folder, the paths from there of the files that are named, texts [N], and the numbers of these files."""
    own = {part.table.folder for part in rows.parts}
    folder = own.pop() if len(own) == 1 else Path()
    paths, numbers = list[pa.Array](), list[np.ndarray]()
    ends = [*(part.first for part in rows.parts[1:]), int(known[-1]) + 1]
    for part, end in zip(rows.parts, ends, strict=True):
        begin, end = np.searchsorted(known, (part.first, end)).tolist()
        of_part, files = names.slice(begin, end - begin), folders[part.table.folder]

        def locate(place: int, begin: int = begin) -> str:
            return rows.locate(int(known[begin + place]))

        relative, found = files.find(of_part, locate)
        if len(of_part) and not files.any_was_found:
            raise DataError(
                f"{part.table.path}: none of the images that its column {part.table.describe(part.columns.image)} "
                f"names is there, such as {list_first(of_part.slice(0, _LISTED + 1).to_pylist())}: names are relative "
                f"to {part.table.folder}, or those of files below it, with or without their ending; "
                "data.image_column=<name> says which column has them"
            )
        if part.table.folder != folder:
            relative = pc.binary_join_element_wise(f"{part.table.folder}/", relative, "")
        paths += relative.chunks
        numbers.append(found + list(folders).index(part.table.folder) * _FILES_OF_A_FOLDER)
    return folder, pa.chunked_array(paths, pa.string()), np.concatenate(numbers)


def _merge_doubled(
    rows: Rows,
    targets: Targets,
    names: pa.ChunkedArray,
    known: np.ndarray,
    numbers: np.ndarray,
    further: Iterable[np.ndarray | None],
) -> np.ndarray:
    """Return the places in `known` of the first row of each image.

    Args:
        rows: all of them.
        targets: those of all rows.
        names: the images of the known rows.
        known: the numbers of the rows that have a target, int32 [n].
        numbers: the numbers of the files of these, int64 [n].
        further: what else is told of these, each [n].

    Raises:
        DataError: Another row of an image says something else.
    """
    if not (np.diff(np.sort(numbers)) == 0).any():
        return np.arange(len(numbers), dtype=np.int32)
    _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    firsts = first[inverse]
    doubled = np.flatnonzero(firsts != np.arange(len(numbers)))
    again, before = known[doubled], known[firsts[doubled]]
    values = targets.values
    same = (values[again] == values[before]) | ((values[again] != values[again]) & (values[before] != values[before]))
    same = same if values.ndim == 1 else same.all(axis=1)
    for told in further:
        if told is not None:
            same &= told[doubled] == told[firsts[doubled]]
    if not same.all():
        at = int(np.argmin(same))
        row, other = int(again[at]), int(before[at])
        raise DataError(
            f"{rows.locate(row)}, gives {names[int(doubled[at])]} {_describe_row(rows, targets, row)}, and "
            f"{rows.locate(other)}, {_describe_row(rows, targets, other)}: an image has one of each; leave one of the "
            "rows out"
        )
    return np.sort(first).astype(np.int32)


def _describe_row(rows: Rows, targets: Targets, row: int) -> str:
    """Return what a row says about its image."""
    told = [f"the label {_format_target(targets, targets.values[row])}"]
    if split := rows.part_of(row).split or (rows.splits is not None and rows.splits[row]):
        told.append(f"the split {split}")
    if rows.groups is not None:
        told.append(f"the group {rows.groups[row]}")
    return " and ".join(told)


def _format_target(targets: Targets, value: np.ndarray) -> str:
    return targets.names[int(value)] if value.ndim == 0 else ",".join(map(str, value.tolist()))


def _number_splits(rows: Rows, chosen: np.ndarray) -> np.ndarray | None:
    """Return the place of each image's split in SPLITS, int8 [N]; None if a part is to be held out."""
    if rows.splits is None:
        if len(rows.parts) == 1:
            return None
        places = np.array([SPLITS.index(part.split) for part in rows.parts], np.int8)
        return places[np.searchsorted([part.first for part in rows.parts], chosen, "right") - 1]
    words = rows.splits.take(pa.array(chosen))
    found = {word: find_split(word) if word else None for word in words.unique().to_pylist()}
    for word, split in found.items():
        if split is None:
            place = pc.index(words.is_null() if word is None else pc.equal(words, word), True).as_py()
            known = ", ".join(name for names in SPLIT_NAMES.values() for name in names)
            raise DataError(f"{rows.locate(int(chosen[place]))}: the split is {word or 'empty'}; write one of {known}")
    places = pc.index_in(words, value_set=pa.array(list(found), pa.string())).to_numpy()
    return np.array([SPLITS.index(str(split)) for split in found.values()], np.int8)[places]


def _number_groups(rows: Rows, chosen: np.ndarray) -> tuple[np.ndarray | None, list[str]]:
    """Return the number of each image's group, int32 [N], and the names of the groups."""
    if rows.groups is None:
        return None, []
    groups = rows.groups.take(pa.array(chosen))
    if groups.null_count:
        place = pc.index(groups.is_null(), True).as_py()
        raise DataError(f"{rows.locate(int(chosen[place]))}: the group is empty; write one, or leave data.group out")
    names = sorted(groups.unique().to_pylist())
    return pc.index_in(groups, value_set=pa.array(names, pa.string())).to_numpy().astype(np.int32), names


# ---- splits ----


def _choose_splits(examples: _Examples, config: TableConfig) -> dict[str, np.ndarray]:
    """Return the places of the images of train, and of val or test or both, in their order."""
    order = examples.order
    if examples.splits is None:
        held = _hold_out(examples, order, config.test_fraction)
        return {"train": order[~held[order]], "test": order[held[order]]}
    chosen = {name: order[examples.splits[order] == place] for place, name in enumerate(SPLITS)}
    chosen = {name: places for name, places in chosen.items() if len(places)}
    if "train" not in chosen or len(chosen) == 1:
        raise DataError(
            f"{config.path}: all images with a label are in the split {list_first(list(chosen))}: give images to train "
            "on, and others to validate or to test on"
        )
    if examples.groups is not None:
        _check_whole_groups(examples, chosen, config)
    trained = np.unique(examples.classes[chosen["train"]])
    for name, places in chosen.items():
        unknown = np.flatnonzero(~np.isin(examples.classes[places], trained))
        if len(unknown):
            place = int(places[unknown[0]])
            raise DataError(
                f"{examples.locate(place)}: the class {_format_target(examples.targets, examples.classes[place])} of a "
                f"{name} image has no image to train on: add some, or remove its rows"
            )
    return chosen


def _check_whole_groups(examples: _Examples, chosen: Mapping[str, np.ndarray], config: TableConfig) -> None:
    """Raise DataError if a group has images in two splits."""
    assert examples.groups is not None
    first = np.full(len(examples.group_names), -1)
    for name, places in chosen.items():
        own = examples.groups[places]
        torn = np.flatnonzero(first[own] >= 0)
        if len(torn):
            group, place = examples.group_names[own[torn[0]]], int(places[torn[0]])
            raise DataError(
                f"{examples.locate(place)}: data.group={config.group}: {group} is in the split {name} and, by "
                f"{examples.locate(int(first[own[torn[0]]]))}, in another: keep a group together, or leave data.group "
                "out"
            )
        first[own] = places


def _hold_out(examples: _Examples, order: np.ndarray, fraction: float) -> np.ndarray:
    """Return a mask of the test images: `holdout_size` of each class, whose names have the smallest CRC-32; or groups.

    So the split is the same on every machine and for every seed.

    Raises:
        DataError: There are too few images.
    """
    classes = examples.classes
    if examples.groups is not None:
        checksums = [zlib.crc32(name.encode()) for name in examples.group_names]
        held = hold_out_groups(examples.groups, np.argsort(checksums, kind="stable"), fraction, classes)
        if not held.any():
            raise DataError(
                f"{list_first(examples.group_names)}: no group can be held out so that each class has images left to "
                "train on: add groups, or say which images are held out by data.split_column or data.test_path"
            )
        return held
    names = (zlib.crc32(name.encode()) for name in iterate_texts(examples.names))
    checksums = np.fromiter(names, np.uint32, len(classes))[order]
    held = np.zeros(len(classes), bool)
    ends = np.flatnonzero(np.diff(classes[order])) + 1
    for of_class, own in zip(np.split(order, ends), np.split(checksums, ends), strict=True):
        if len(of_class) < 2:
            place = int(of_class[0])
            of_one = examples.targets.values.ndim == 1
            which = f"class {_format_target(examples.targets, classes[place])}" if of_one else "the table"
            raise DataError(
                f"{which} has a single image, {examples.describe(place)}: it takes two, to train and to test; add one"
                f"{', or remove the class' if of_one else ''}"
            )
        held[of_class[np.argsort(own, kind="stable")[: holdout_size(len(of_class), fraction)]]] = True
    return held


def _describe_absent(examples: _Examples, chosen: Mapping[str, np.ndarray]) -> list[str]:
    """Return notes of the classes that a split lacks, and of labels or numbers that training never tells."""
    targets = examples.targets
    if targets.values.ndim > 1:
        unknown = np.isnan(targets.values[chosen["train"]]).all(axis=0)
        absent = [name for name, is_unknown in zip(targets.names, unknown, strict=True) if is_unknown]
        return [f"no training image has a value for {list_first(absent)}"] if absent else []
    notes = []
    for split, places in chosen.items():
        counts = np.bincount(targets.values[places], minlength=targets.count)
        if absent := [name for name, count in zip(targets.names, counts.tolist(), strict=True) if not count]:
            notes.append(f"the split {split} has no images of {list_first(absent)}")
    return notes


# ---- the source ----


def _make_source(
    examples: _Examples, chosen: Mapping[str, np.ndarray], notes: Sequence[str], config: TableConfig
) -> Source:
    names = examples.targets.names
    if examples.paths is not None:
        listings = {name: _list_files(examples, places) for name, places in chosen.items()}
        return make_source(listings, names, notes, config)
    splits = {
        name: ColumnSplit(
            examples.rows.images, examples.chosen[places], examples.targets.values[places], examples.rows.locate, config
        )
        for name, places in chosen.items()
    }
    digests = {
        name: hash_texts(
            f"{text} {size}"
            for text, size in zip(_name_all(examples, chosen[name]), split.stored_sizes.tolist(), strict=True)
        )
        for name, split in splits.items()
    }
    return make_encoded_source(splits, names, notes, digests, config)


def _list_files(examples: _Examples, places: np.ndarray) -> Listing:
    def locate(place: int) -> str:
        return f"{examples.locate(int(places[place]))}: "

    assert examples.paths is not None
    paths = examples.paths.take(pa.array(places)).combine_chunks()
    files = PathList(examples.folder, paths)
    return Listing(files, examples.targets.values[places], _name_all(examples, places), locate)


def _name_all(examples: _Examples, places: np.ndarray) -> Iterator[str]:
    """Yield the name of each image after its class or its targets."""
    values = examples.targets.values[places]
    for value, name in zip(values, iterate_texts(examples.names.take(pa.array(places))), strict=True):
        yield f"{_format_target(examples.targets, value)}/{name}"
