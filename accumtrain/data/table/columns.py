"""The rows of all tables of a data set: which columns hold what, and which table is which split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from accumtrain.data.config import TableConfig
from accumtrain.data.local_files import list_first
from accumtrain.data.sources.folder import find_split
from accumtrain.data.sources.targets import ClassTargets, Column, TargetReader, as_texts
from accumtrain.data.table.files import ImageFiles
from accumtrain.data.table.reader import Table, as_images, as_names, is_image, open_tables
from accumtrain.errors import DataError
from accumtrain.fields import normal_form

SPLITS = ("train", "val", "test")
_CHOOSE = "data.image_column=<name or place> data.label_column=<name or place>"


@dataclass(frozen=True)
class _Columns:
    """The places of columns in a table; `skip` is 1 if the first row holds their names."""

    image: int
    labels: Mapping[str, int]
    split: int | None
    group: int | None
    skip: int


@dataclass(frozen=True)
class _Part:
    """A table, the split that it is (or ""), and the number of its first row."""

    table: Table
    split: str
    first: int
    columns: _Columns


@dataclass(frozen=True)
class Rows:
    """The rows of all tables, one after the other. Columns are null where a cell is empty."""

    parts: Sequence[_Part]
    images: Column
    labels: Mapping[str, Column]
    splits: Column | None
    groups: Column | None

    def part_of(self, row: int) -> _Part:
        return next(part for part in reversed(self.parts) if part.first <= row)

    def locate(self, row: int) -> str:
        part = self.part_of(row)
        return part.table.locate(row - part.first)

    @property
    def hold_images(self) -> bool:
        """True if they hold images; they name files otherwise."""
        return is_image(self.images.type)


def read_rows(config: TableConfig, reader: TargetReader, folders: Folders) -> Rows:
    """Return the rows of all tables.

    Args:
        reader: the way to read the targets, which may name the columns that it needs.
        folders: the image files of the tables' folders.

    Raises:
        DataError: A table can't be read, or lacks a column.
    """
    parts, cells, first = list[_Part](), list[list[Column]](), 0
    for split, table in _open_all(config):
        columns = _choose_columns(config, table, reader, folders)
        named = [place for place in (columns.split, columns.group) if place is not None]
        image, *rest = table.read([columns.image, *named, *columns.labels.values()], skip=columns.skip)
        names = [as_names(column, table.describe_fully(place)) for column, place in zip(rest, named, strict=False)]
        cells.append([as_images(image, table.describe_fully(columns.image)), *names, *rest[len(named) :]])
        parts.append(_Part(table, split, first, columns))
        first += len(image)
        _check_alike(parts[0], parts[-1], reader)
    images, *joined = [_join(config, column) for column in zip(*cells, strict=True)]
    return Rows(
        parts,
        images,
        splits=joined.pop(0) if config.split_column is not None else None,
        groups=joined.pop(0) if config.group is not None else None,
        labels=dict(zip(parts[0].columns.labels, joined, strict=True)),
    )


def _check_alike(part: _Part, other: _Part, reader: TargetReader) -> None:
    """Raise DataError if two tables have other targets. The columns of a class may have any name."""
    names, others = list(part.columns.labels), list(other.columns.labels)
    if names != others and not (len(names) == len(others) and isinstance(reader, ClassTargets)):
        raise DataError(
            f"{other.table.path} has the targets {', '.join(others)}, {part.table.path} has {', '.join(names)}: name "
            "the columns alike, or say which they are by data.label_column"
        )


def _join(config: TableConfig, columns: Sequence[Column]) -> Column:
    kinds = {column.type for column in columns}
    if len(kinds) > 1 and any(is_image(kind) or pa.types.is_list(kind) for kind in kinds):
        raise DataError(
            f"{config.path} and its other tables hold {' and '.join(map(str, kinds))} in the same column: write them "
            "all the same way"
        )
    columns = columns if len(kinds) == 1 else [as_texts(column) for column in columns]
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], columns[0].type)


def _open_all(config: TableConfig) -> list[tuple[str, Table]]:
    """Return each table with the name of its split, which is "" if something else says it."""
    others = {"val": config.val_path, "test": config.test_path}
    given = {split: path for split, path in others.items() if path is not None}
    found = open_tables(Path(config.path), "data.path")
    if "" in found:
        tables = [("train" if given else "", found[""])]
        for split, path in given.items():
            opened = open_tables(Path(path), f"data.{split}_path")
            if "" not in opened:
                raise DataError(
                    f"data.{split}_path={path} has the splits {list_first(list(opened))}: give the folder of one"
                )
            tables.append((split, opened[""]))
        return tables
    by_split = {find_split(name): table for name, table in found.items()}
    if (
        given
        or config.split_column is not None
        or len(by_split) < len(found)
        or not {"train"} <= by_split.keys() <= set(SPLITS)
    ):
        raise DataError(
            f"data.path={config.path} has the splits {list_first(list(found))}: these must be train, and val or test, "
            "without data.val_path, data.test_path and data.split_column; or give the folder of one of them"
        )
    return [(split if len(by_split) > 1 else "", by_split[split]) for split in SPLITS if split in by_split]


class Folders(dict[Path, ImageFiles]):
    """The image files of each folder, which are listed once."""

    def __missing__(self, folder: Path) -> ImageFiles:
        self[folder] = ImageFiles(folder)
        return self[folder]


# ---- the columns of a table ----


def _choose_columns(config: TableConfig, table: Table, reader: TargetReader, folders: Folders) -> _Columns:
    label = config.label_column
    if label is None and reader.names and set(reader.names) <= set(table.names):
        label = list(reader.names)
    split = _find_place(table, "data.split_column", config.split_column)
    group = _find_place(table, "data.group", config.group)
    image = _find_place(table, "data.image_column", config.image_column)
    wanted = label if isinstance(label, list) else [] if label is None else [label]
    labels = [place for each in wanted if (place := _find_place(table, "data.label_column", each)) is not None]
    rest = [place for place in range(len(table.names)) if place not in (split, group, *labels)]
    if image is None and len(rest) == (1 if labels else 2):
        image = rest[0]
    if not labels and image in rest and len(rest) == 2:
        labels = [place for place in rest if place != image]
    if image is None or not labels:
        raise DataError(
            f"{table.path} has the columns {', '.join(table.names)}: say which of them hold the images and the labels, "
            f"{_CHOOSE}"
        )
    chosen = [place for place in (image, *labels, split, group) if place is not None]
    if image in labels:
        raise DataError(f"{table.path}: images and labels are both in column {table.describe(image)}; give two columns")
    if len(set(chosen)) < len(chosen):
        raise DataError(
            f"{table.path}: the columns {', '.join(map(table.describe, chosen))} are asked for; give each key a column "
            "of its own"
        )
    given = [config.image_column, *wanted, config.split_column, config.group]
    named = table.has_names or any(value is not None and str(value) in table.names for value in given)
    named = named or not folders[table.folder].holds(table.names[image])
    skip = int(named and not table.has_names)
    return _Columns(
        image, {table.names[place] if named else str(place + 1): place for place in labels}, split, group, skip
    )


def _find_place(table: Table, key: str, value: str | int | None) -> int | None:
    if value is None:
        return None
    places = table.find(normal_form(str(value)))
    if len(places) > 1:
        raise DataError(
            f"{key}={value}: {table.path} has {len(places)} columns of that name, "
            f"{' and '.join(map(table.describe, places))}; give a place from 1 on"
        )
    if places:
        return places[0]
    if str(value).isdecimal() and 1 <= int(value) <= len(table.names):
        return int(value) - 1
    raise DataError(
        f"{key}={value}: {table.path} has the columns {', '.join(table.names)}; give a name, or a place from 1 on"
    )
