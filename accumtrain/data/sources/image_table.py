"""data=table: image files whose classes stand in a table, a CSV file with a row for each image."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from accumtrain.data.config import TableConfig
from accumtrain.data.holdout import hold_out_by_name
from accumtrain.data.local_files import (
    Image,
    ImagesByClass,
    check_name,
    find_file_fault,
    is_image,
    list_first,
    readable,
    walk_files,
)
from accumtrain.data.source import Source
from accumtrain.data.sources.folder import make_source
from accumtrain.errors import DataError
from accumtrain.fields import normal_form

_DELIMITERS = "\t;, "  # the first of them that the first line has


def open_table(config: TableConfig, seed: int) -> Source:
    """Return the images that a table names, with a part of each class held out to test on. The seed changes nothing.

    Raises:
        DataError: The table or an image can't be read, an image has two labels, or all have the same.
    """
    with readable():
        listing, notes = list_table(config)
    if len(listing) < 2:
        raise DataError(
            f"{config.path} has the single class {list_first(list(listing))}: it takes two or more to tell apart; "
            "data.label_column=<name or place> says which column has the labels"
        )
    return make_source(hold_out_by_name(listing, config.test_fraction), notes, config)


def list_table(config: TableConfig) -> tuple[ImagesByClass, list[str]]:
    """Return the images of each class, sorted by names, and notes of what was left out.

    Raises:
        DataError: The table can't be read, has no such columns, or gives an image two labels.
        OSError: A folder can't be read.
    """
    file = Path(config.path)
    rows = _read_rows(file)
    first_number, first = next(iter(rows.items()))
    files = _Files(file.parent)
    image, label, has_header = _find_columns(config, first, files)
    if has_header:
        del rows[first_number]
    labels: dict[Path, tuple[str, str]] = {}  # of each file: its name in the table, and its class
    unlabelled, twice = list[str](), list[str]()
    for number, row in rows.items():
        if len(row) <= max(image, label):
            raise DataError(
                f"{file}: row {number} has {len(row)} columns, row {first_number} has {len(first)}: complete the row"
            )
        name, kind = normal_form(row[image].strip()), normal_form(row[label].strip())
        found = files.find(name)
        if not kind:
            unlabelled.append(name)
        elif found not in labels:
            labels[found] = name, kind
        elif labels[found][1] == kind:
            twice.append(name)
        else:
            raise DataError(
                f"{file}: row {number} gives {name} the label {kind}, another row {labels[found][1]}: an image has one "
                "class; leave one of the rows out"
            )
    if not labels:
        raise DataError(
            f"{file}: no row {'below the names of columns ' if has_header else ''}has a label in column "
            f"{_describe(first, label)}; write them into it, or data.label_column=<name or place> says where they are"
        )
    if not any(found in files.all or found.is_file() for found in labels):
        raise DataError(
            f"{file}: none of the images that its column {_describe(first, image)} names is there, such as "
            f"{list_first([name for name, _ in labels.values()])}: names are relative to {file.parent}, or those of "
            "files below it, with or without their ending; data.image_column=<name or place> says which column has them"
        )
    listing: ImagesByClass = {kind: [] for kind in sorted({kind for _, kind in labels.values()})}
    for found, (name, kind) in labels.items():
        listing[kind].append(Image(name, found))
    notes = [f"the first row is taken as names of columns: {list_first(first)}"] if has_header else []
    about = {
        "rows without a label are left out": unlabelled,
        "images stand in the table more than once, and are taken once": twice,
        "images are not in the table, and are left out": sorted(map(str, files.all - labels.keys())),
    }
    notes += [f"{len(names):,} {text}: {list_first(names)}" for text, names in about.items() if names]
    return {kind: sorted(images) for kind, images in listing.items()}, notes


class _Files:
    """The image files below a folder, found by their paths from there or their names, with or without ending."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.all: set[Path] = set()
        self._by_path: dict[str, set[Path]] = {}
        self._by_name: dict[str, set[Path]] = {}
        for file in filter(is_image, walk_files(folder)):
            self._add(file)

    def _add(self, file: Path) -> None:
        check_name(file)
        self.all.add(file)
        path = file.relative_to(self._folder)
        for whole in (path, path.with_suffix("")):
            self._by_path.setdefault(normal_form(whole.as_posix()), set()).add(file)
            self._by_name.setdefault(normal_form(whole.name), set()).add(file)

    def find(self, name: str) -> Path:
        """Return the file of that name; a path that is not there if there is none. Raise DataError for several."""
        for files in (self._by_path.get(name), self._by_name.get(name)):
            if files is not None and len(files) > 1:
                raise DataError(f"{name} can be {' or '.join(sorted(map(str, files)))}: write its path into the table")
            if files:
                return next(iter(files))
        return self._folder / name


def _read_rows(file: Path) -> dict[int, list[str]]:
    """Return the rows that are not empty, at least one, by their numbers. Empty rows count, as in a spreadsheet."""
    if fault := find_file_fault(file):
        raise DataError(f"data.path={file} {fault}: give the table of the images and their labels")
    try:
        text = file.read_text(encoding="utf-8-sig")
        first = text.lstrip("\r\n").partition("\n")[0]
        delimiter = next((character for character in _DELIMITERS if character in first), ",")
        reader = csv.reader(io.StringIO(text), delimiter=delimiter)
        rows = {number: row for number, row in enumerate(reader, start=1) if any(row)}
    except UnicodeDecodeError as error:
        raise DataError(f"data.path={file} is not text in UTF-8: save the table as CSV in UTF-8") from error
    except csv.Error as error:
        raise DataError(f"data.path={file} can't be read as a table: {error}; save it as CSV") from error
    if not rows:
        raise DataError(f"data.path={file} has no row: give the table of the images and their labels")
    return rows


def _find_columns(config: TableConfig, first: Sequence[str], files: _Files) -> tuple[int, int, bool]:
    """Return the places of images and labels, from 0 on, and whether the first row holds the names of columns."""
    given = {"data.image_column": config.image_column, "data.label_column": config.label_column}
    places = [_find_place(config, key, value, first) for key, value in given.items()]
    if None in places and len(first) != 2:
        raise DataError(
            f"{config.path} has the columns {', '.join(first)}: say which of them hold the images and the labels, "
            "data.image_column=<name or place> data.label_column=<name or place>"
        )
    image, label = places
    if image is None:
        image = 0 if label is None else 1 - label
    if label is None:
        label = 1 - image
    if image == label:
        raise DataError(
            f"{config.path}: images and labels are both in column {_describe(first, image)}; give two columns"
        )
    by_name = any(value is not None and str(value) in first for value in given.values())
    return image, label, by_name or not files.find(normal_form(first[image].strip())).is_file()


def _find_place(config: TableConfig, key: str, value: str | int | None, first: Sequence[str]) -> int | None:
    if value is None:
        return None
    if str(value) in first:
        return first.index(str(value))
    if isinstance(value, int) and value <= len(first):
        return value - 1
    raise DataError(
        f"{key}={value}: {config.path} has the columns {', '.join(first)}; give a name, or a place from 1 on"
    )


def _describe(first: Sequence[str], place: int) -> str:
    return f"{place + 1} ({first[place]})"
