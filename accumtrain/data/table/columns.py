"""The rows of all tables of a data set: which columns hold what, and which table is which split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from accumtrain.data.config import TableConfig
from accumtrain.data.local_files import list_first
from accumtrain.data.sources.folder import find_split
from accumtrain.data.sources.targets import ClassTargets, Column, TargetReader, as_texts
from accumtrain.data.table.reader import Table, clean, is_image, open_tables
from accumtrain.errors import DataError

SPLITS = ("train", "val", "test")
_CHOOSE = "data.image_column=<name> data.label_column=<name>"


@dataclass(frozen=True)
class _Columns:
    """The names of columns of a table."""

    image: str
    labels: list[str]
    split: str | None
    group: str | None


@dataclass(frozen=True)
class Part:
    """A table, the split that it is (or ""), the index of its first row, and its columns."""

    table: Table
    split: str
    first: int
    columns: _Columns


@dataclass(frozen=True)
class Rows:
    """The rows of all tables, one after the other. Columns are null where a cell is empty."""

    parts: Sequence[Part]
    images: Column
    labels: Mapping[str, Column]
    splits: Column | None
    groups: Column | None

    def part_of(self, row: int) -> Part:
        return next(part for part in reversed(self.parts) if part.first <= row)

    def locate(self, row: int) -> str:
        part = self.part_of(row)
        return part.table.locate(row - part.first)

    @property
    def hold_images(self) -> bool:
        """True if they hold images; they name files otherwise."""
        return is_image(self.images.type)


def read_rows(config: TableConfig, reader: TargetReader) -> Rows:
    """Return the rows of all tables.

    Args:
        reader: The way to read the targets, which may name the columns that it needs.

    Raises:
        DataError: A table can't be read, or lacks a column.
    """
    parts, cells, first = list[Part](), list[list[Column]](), 0
    for split, table in _open_all(config):
        columns = _choose_columns(config, table, reader)
        cells.append(_read_cells(table, columns))
        parts.append(Part(table, split, first, columns))
        first += table.rows
        _check_alike(parts[0], parts[-1], reader)
    images, *joined = [_join(config, column) for column in zip(*cells, strict=True)]
    return Rows(
        parts,
        images,
        splits=joined.pop(0) if config.split_column is not None else None,
        groups=joined.pop(0) if config.group is not None else None,
        labels=dict(zip(parts[0].columns.labels, joined, strict=True)),
    )


def _read_cells(table: Table, columns: _Columns) -> list[Column]:
    """Return the images, the splits and groups if there are some, and the labels."""
    named = [name for name in (columns.split, columns.group) if name is not None]
    names = [columns.image, *named, *columns.labels]
    image, *rest = [
        _check_closed(clean(column, table.describe_fully(name)), table, name)
        for name, column in zip(names, table.columns(names), strict=True)
    ]
    texts = [_as_names(column, table.describe_fully(name)) for name, column in zip(named, rest, strict=False)]
    return [_as_images(image, table.describe_fully(columns.image)), *texts, *rest[len(named) :]]


def _check_closed(column: Column, table: Table, name: str) -> Column:
    """Raise DataError for a text of several lines, which a quote that is not closed makes of cells."""
    if pa.types.is_string(column.type):
        row = pc.index(pc.match_substring(column, "\n"), True).as_py()
        if row >= 0:
            raise DataError(
                f"{table.locate(row)}: the cell of column {table.describe(name)} goes on over several lines: close its "
                "quotes, or write it in one"
            )
    return column


def _as_images(column: Column, name: str) -> Column:
    """Return a column of images as bytes, or as the names of files if there are no bytes."""
    if pa.types.is_struct(column.type):
        images = pc.struct_field(column, "bytes")
        if images.null_count < len(images) or column.type.get_field_index("path") < 0:
            return images
        return clean(pc.struct_field(column, "path"), name)
    return column if is_image(column.type) else _as_names(column, name)


def _as_names(column: Column, name: str) -> Column:
    """Return a column as texts. Raise DataError, which begins with the column's name, if it holds no such."""
    if is_image(column.type) or pa.types.is_list(column.type):
        raise DataError(f"{name} holds values of type {column.type}: give texts or numbers")
    return as_texts(column)


def _check_alike(part: Part, other: Part, reader: TargetReader) -> None:
    """Raise DataError if two tables have other targets. The columns of a class may have any name."""
    names, others = part.columns.labels, other.columns.labels
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
    found = open_tables(Path(config.path), "data.path", header=config.header)
    if "" in found:
        tables = [("train" if given else "", found[""])]
        for split, path in given.items():
            opened = open_tables(Path(path), f"data.{split}_path", header=config.header)
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


# ---- the columns of a table ----


def _choose_columns(config: TableConfig, table: Table, reader: TargetReader) -> _Columns:
    label = config.label_column
    if label is None and reader.names and set(reader.names) <= set(table.names):
        label = list(reader.names)
    image = _find(table, "data.image_column", config.image_column)
    labels = [
        table.find("data.label_column", each)
        for each in (label if isinstance(label, list) else [] if label is None else [label])
    ]
    split = _find(table, "data.split_column", config.split_column)
    group = _find(table, "data.group", config.group)
    rest = [name for name in table.names if name not in (split, group, *labels)]
    if image is None and len(rest) == (1 if labels else 2):
        image = rest[0]
    if not labels and image in rest and len(rest) == 2:
        labels = [name for name in rest if name != image]
    if image is None or not labels:
        raise DataError(
            f"{table.path} has the columns {', '.join(table.names)}: say which of them hold the images and the labels, "
            f"{_CHOOSE}"
        )
    chosen = [name for name in (image, *labels, split, group) if name is not None]
    if twice := [name for name in chosen if chosen.count(name) > 1]:
        raise DataError(f"{table.path}: column {table.describe(twice[0])} is asked for twice; give each key its own")
    return _Columns(image, labels, split, group)


def _find(table: Table, key: str, value: str | int | None) -> str | None:
    return None if value is None else table.find(key, value)
