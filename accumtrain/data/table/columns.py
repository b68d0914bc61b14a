"""The rows of all tables of a data set: which columns hold what, and which table is which split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from accumtrain.data.config import TableConfig
from accumtrain.data.local_files import list_first, readable
from accumtrain.data.source import UnreadableExample
from accumtrain.data.sources.folder import find_split
from accumtrain.data.table.reader import Table, clean, is_image, open_tables
from accumtrain.data.targets.base import TargetReader
from accumtrain.data.targets.cells import CellRules, Column, Locate, as_texts
from accumtrain.data.targets.classes import ClassTargets
from accumtrain.data.targets.numbers import find_rounding, read_numbers
from accumtrain.data.text.texts import Text
from accumtrain.errors import DataError
from accumtrain.fields import normal_form

SPLITS = ("train", "val", "test")
_CHOOSE = "data.image_column=<name>, data.text_column=<name> or 'data.number_columns=[<name>,...]'"
_NEEDED = "name the columns of numbers without it, 'data.number_columns=[<name>,...]'"
_CHUNK = 2**14  # texts


@dataclass(frozen=True)
class _Columns:
    """The names of columns of a table."""

    inputs: list[str]
    labels: list[str]
    split: str | None
    group: str | None


@dataclass(frozen=True)
class Part:
    """A table with its columns.

    Attributes:
        split: That it is, or "".
        first: The index of its first row.
        folder: The folder from which the names of image files begin.
    """

    table: Table
    split: str
    first: int
    columns: _Columns
    folder: Path


@dataclass(frozen=True)
class Rows:
    """The rows of all tables, one after the other. Columns are null where a cell is empty.

    The inputs are a column of images or names of files, a column of texts or two of pairs, or columns of numbers.
    """

    parts: Sequence[Part]
    inputs: Sequence[Column]
    labels: Mapping[str, Column]
    splits: Column | None
    groups: Column | None

    def part_of(self, row: int) -> Part:
        return next(part for part in reversed(self.parts) if part.first <= row)

    def locate(self, row: int) -> str:
        part = self.part_of(row)
        return part.table.locate(row - part.first)

    def make_locate(self, chosen: np.ndarray) -> Locate:
        """Return `locate` of some rows, integers [N], by their index among these. It keeps no cell in memory."""
        tables = [(part.first, part.table.locate) for part in reversed(self.parts)]

        def locate(index: int) -> str:
            row = int(chosen[index])
            return next(in_table(row - first) for first, in_table in tables if first <= row)

        return locate

    @property
    def hold_images(self) -> bool:
        """True if they hold images; they name files otherwise."""
        return is_image(self.inputs[0].type)


def read_rows(config: TableConfig, reader: TargetReader | None, tables: Sequence[tuple[str, Table]]) -> Rows:
    """Return the rows of all tables, which `open_all` has opened.

    Args:
        reader: The way to read the targets, which may name the columns that it needs; None: there are none.

    Raises:
        DataError: A table can't be read, or lacks a column.
    """
    parts, cells, first = list[Part](), list[list[Column]](), 0
    for split, table in tables:
        if parts and isinstance(config.label_column, str):
            _check_labelled(config.label_column, parts[0], table, split)
        columns = _choose_columns(config, table, reader)
        if config.number_columns == config.ALL:  # all tables have those of the first
            config = replace(config, number_columns=[*columns.inputs])
        cells.append(_read_cells(config, table, columns))
        parts.append(Part(table, split, first, columns, folder_of_images(config, table)))
        first += table.rows
        _check_alike(parts[0], parts[-1], reader)
    joined = [_join(config, column) for column in zip(*cells, strict=True)]
    count = len(parts[0].columns.inputs)
    inputs, rest = joined[:count], joined[count:]
    return Rows(
        parts,
        inputs,
        splits=rest.pop(0) if config.split_column is not None else None,
        groups=rest.pop(0) if config.group is not None else None,
        labels=dict(zip(parts[0].columns.labels, rest, strict=True)),
    )


def _read_cells(config: TableConfig, table: Table, columns: _Columns) -> list[Column]:
    """Return the inputs, the splits and groups if there are some, and the labels."""
    named = [name for name in (columns.split, columns.group) if name is not None]
    names = [*columns.inputs, *named, *columns.labels]
    cells, stored = [], table.columns(names)
    for name in names:
        title, column = table.describe_fully(name), stored.pop(0)  # cells become others, and both take memory
        if name in columns.inputs and config.text_column is not None:
            cells.append(_as_documents(column, title))
            continue
        cleaned = clean(column, title)
        cleaned = _check_closed(cleaned if name in columns.inputs else _as_utf8(cleaned, table, name), table, name)
        if name in columns.inputs and config.number_columns is None:
            cleaned = _as_images(cleaned, title)
        cells.append(_as_names(cleaned, title) if name in named else cleaned)
    return cells


def _as_documents(column: Column, name: str) -> Column:
    """Return a column of texts as they are stored. Raise DataError, which begins with its name, for other values."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _as_documents(column.cast(kind.value_type), name)
    if pa.types.is_null(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return column.cast(pa.string())
    if pa.types.is_string(kind):
        return column
    raise DataError(f"{name} holds values of type {kind}: give texts")


def iterate_texts(column: Column) -> Iterator[Any]:
    """Yield the texts of a column, None for a null; few are in memory together."""
    for chunk in column.chunks:
        for first in range(0, len(chunk), _CHUNK):
            yield from chunk.slice(first, _CHUNK).to_pylist()


def read_texts(columns: Sequence[Column], locate: Locate) -> Iterator[Text]:
    """Yield the texts of a column, or the pairs of two, by the names of their rows. Without a text they are bad."""
    for index, (content, *second) in enumerate(zip(*map(iterate_texts, columns), strict=True)):
        name, is_whole = locate(index), all([content, *second])
        lacking = f"has a pair without its {'second' if content else 'first'} text"
        fault = None if is_whole else UnreadableExample(name, lacking if second else "has no text")
        yield Text(name, content or "", fault=fault, second=(second[0] or "") if second else None)


def read_named_texts(path: Path, key: str, names: Sequence[str | int], *, header: bool) -> Iterator[Text]:
    """Yield the texts of the columns of a table in which a run finds its texts. Raise DataError if it can't be read.

    Args:
        key: That gives the table, for messages.
    """
    with readable():
        tables = open_tables(path, key, header=header)
    for table in tables.values():
        for name in names:
            by_number = isinstance(name, int) and name <= len(table.names)
            if normal_form(str(name)) not in table.names and not by_number:
                raise DataError(
                    f"{key}={path} has no column {name}, in which the run finds its texts, only "
                    f"{', '.join(table.names)}: call that of its texts {name}"
                )
        found = [table.find("data.text_column", name) for name in names]
        columns = [
            _as_documents(column, table.describe_fully(each))
            for each, column in zip(found, table.columns(found), strict=True)
        ]
        yield from read_texts(columns, table.locate)


def read_inputs(
    columns: Mapping[str, Column], locate: Locate, rules: CellRules, trained: np.ndarray | None = None
) -> np.ndarray:
    """Return numbers as inputs, float32 [N, columns].

    Args:
        rules: Of the cells.
        trained: The indices of the rows to train on; None if there are none.

    Raises:
        DataError: A cell is empty or holds no number, or float32 rounds those to train on to few values.
    """
    values = np.empty([len(next(iter(columns.values()))), len(columns)], np.float32)
    for index, (name, column) in enumerate(columns.items()):
        numbers = read_numbers(name, column, locate, rules, _NEEDED)
        values[:, index] = numbers
        if trained is None:
            continue
        if np.ptp(numbers[trained]) > 0 and (fault := find_rounding(numbers[trained])):
            raise DataError(f"column {name} {fault}, in rows to predict, too")
    empty = np.isnan(values)
    if empty.any():
        row, column = np.argwhere(empty)[0].tolist()
        raise DataError(
            f"{locate(row)}: column {list(columns)[column]} is empty, and the numbers of an example are all needed: "
            "write one, or remove the row"
        )
    return values


def read_named_numbers(path: Path, key: str, names: Sequence[str], config: TableConfig) -> tuple[list[str], np.ndarray]:
    """Return the names of the rows of a table, and the numbers in some columns, float32 [N, columns].

    Args:
        key: That gives the table, for messages.
    """
    rows, values = list[str](), list[np.ndarray]()
    with readable():
        tables = open_tables(path, key, header=config.header)
    for table in tables.values():
        if absent := [name for name in names if name not in table.names]:
            raise DataError(
                f"{key}={path} lacks the columns {list_first(absent)} that the run has learned from, and has "
                f"{', '.join(table.names)}: call its columns so"
            )
        found = [table.find("data.number_columns", name) for name in names]
        cells = {
            name: clean(column, table.describe_fully(name))
            for name, column in zip(found, table.columns(found), strict=True)
        }
        values.append(read_inputs(cells, table.locate, CellRules.of(config)))
        rows += map(table.locate, range(table.rows))
    return rows, np.concatenate(values)


def _check_closed(column: Column, table: Table, name: str) -> Column:
    """Raise DataError for a text of several lines, which a quote that is not closed makes of cells."""
    if pa.types.is_string(column.type):
        row = pc.index(pc.match_substring(column, "\n"), True).as_py()
        if row >= 0:
            raise DataError(
                f"{table.locate(row)}: the cell of column {table.describe(name)} goes on over several lines: close its "
                f"quotes, or write it in one; if it is a text to learn from, data.text_column={name} says so"
            )
    return column


def _as_utf8(column: Column, table: Table, name: str) -> Column:
    """Return a column of bytes as texts, and another as it is. Raise DataError for bytes that are no text."""
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        return column
    for row, cell in enumerate(iterate_texts(column)):
        if cell is not None and cell.decode(errors="ignore").encode() != cell:
            raise DataError(
                f"{table.locate(row)}: the cell of column {table.describe(name)} is no text in UTF-8: write it as one"
            )
    return column.cast(pa.string())


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


def _check_alike(part: Part, other: Part, reader: TargetReader | None) -> None:
    """Raise DataError if two tables have other targets. The column of a class may have any name."""
    names, others = part.columns.labels, other.columns.labels
    if names != others and not (len(names) == len(others) == 1 and isinstance(reader, ClassTargets)):
        raise DataError(
            f"{other.table.path} has the targets {', '.join(others)}, {part.table.path} has {', '.join(names)}: name "
            "the columns alike, or say which they are by data.label_column"
        )


def _check_labelled(name: str, part: Part, other: Table, split: str) -> None:
    """Raise DataError if a table to validate or test on lacks the column of the labels, and has the examples."""
    if normal_form(name) not in other.names and set(part.columns.inputs) <= set(other.names):
        raise DataError(
            f"{other.path} has no column {name}, and the split {split} needs labels: train without it, and give it to "
            "job=predict afterwards; or add the column"
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


def folder_of_images(config: TableConfig, table: Table) -> Path:
    """Return the folder from which the names of the image files of a table begin."""
    return table.path.parent if config.root is None else Path(config.root)


def open_all(config: TableConfig) -> list[tuple[str, Table]]:
    """Return each table with the name of its split, which is "" if something else says it. That to train on is first.

    Raises:
        DataError: A table can't be read, or is of no split.
    """
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


def _choose_columns(config: TableConfig, table: Table, reader: TargetReader | None) -> _Columns:
    split = _find(table, "data.split_column", config.split_column)
    group = _find(table, "data.group", config.group)
    labels = [] if reader is None else _find_labels(config, table, reader)
    rest = [name for name in table.names if name not in (split, group, *labels)]
    if config.text_column is not None:
        inputs = [table.find("data.text_column", name) for name in config.text_columns]
    elif config.number_columns is not None:
        asked = rest if config.number_columns == config.ALL else config.number_columns
        inputs = [table.find("data.number_columns", name) for name in asked]
    elif config.image_column is not None:
        inputs = [table.find("data.image_column", config.image_column)]
    else:
        inputs = rest[:1] if len(rest) == (1 if labels else 2) else []
    others = [name for name in rest if name not in inputs]
    if inputs and reader is not None and not labels and len(others) == 1:
        labels = others
    if not inputs or not (labels or reader is None):
        missing = [] if inputs else [f"an example, {_CHOOSE}"]
        missing += [] if labels or reader is None else ["the labels, data.label_column=<name>"]
        raise DataError(
            f"{table.path} has the columns {', '.join(table.names)}: say which of them hold {'; and '.join(missing)}"
        )
    chosen = [name for name in (*inputs, *labels, split, group) if name is not None]
    if twice := [name for name in chosen if chosen.count(name) > 1]:
        raise DataError(f"{table.path}: column {table.describe(twice[0])} is asked for twice; give each key its own")
    return _Columns(inputs, labels, split, group)


def _find_labels(config: TableConfig, table: Table, reader: TargetReader) -> list[str]:
    asked = config.label_column
    if asked is None:
        return list(reader.names) if set(reader.names) <= set(table.names) else []
    return [table.find("data.label_column", each) for each in (asked if isinstance(asked, list) else [asked])]


def _find(table: Table, key: str, value: str | int | None) -> str | None:
    return None if value is None else table.find(key, value)
