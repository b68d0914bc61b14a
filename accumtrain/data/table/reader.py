"""The rows of tables: text with separators, JSON lines, Parquet, and folders of the library `datasets`.

Columns are read into Arrow, which keeps them in the memory of their content. Each row knows its line for messages.
"""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from accumtrain.console import format_bytes
from accumtrain.data.local_files import find_file_fault
from accumtrain.data.sources.targets import Column, as_texts
from accumtrain.errors import DataError
from accumtrain.fields import normal_form
from accumtrain.process.machine import free_bytes

_SEPARATORS = "\t;, "  # the first of them that the first line has
_JSON = (".jsonl", ".ndjson", ".json")
_PARQUET = (".parquet", ".pq")
_DATASET = ("state.json", "dataset_dict.json")  # in a folder that `save_to_disk` wrote: of one data set, of several
_CHUNK = 2**14  # rows
_GIVE = "give the table of the images and their labels"
# Arrow raises these for a damaged file, the others for names in it that are no UTF-8, or for sizes
_UNREADABLE = (pa.ArrowException, OSError, ValueError, MemoryError, TypeError, KeyError)
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


class Table(ABC):
    """An opened table.

    Attributes:
        path: The file or folder.
        names: The names of the columns, or the cells of the first row.
        has_names: False if the first row may hold names or not.
    """

    path: Path
    names: list[str]
    has_names = True

    @property
    def folder(self) -> Path:
        """The folder from which the paths of images begin."""
        return self.path.parent

    @abstractmethod
    def read(self, places: Sequence[int], *, skip: int = 0) -> list[Column]:
        """Return the columns at some places as `clean` makes them, without the first `skip` rows.

        Raises:
            DataError: The table can't be read, or a row has another number of columns.
        """

    @abstractmethod
    def locate(self, row: int) -> str:
        """Return the place of a row of the last `read` in words, such as "photos.csv, line 17"."""

    def find(self, name: str) -> list[int]:
        """Return the places of the columns of that name."""
        return [place for place, own in enumerate(self.names) if own == name]

    def describe(self, place: int) -> str:
        """Return the place of a column from 1 on, and its name."""
        return f"{place + 1} ({self.names[place]})"

    def describe_fully(self, place: int) -> str:
        """Return a column with its table, for the beginning of a message."""
        return f"{self.path}: column {self.describe(place)}"


def open_tables(path: Path, key: str) -> dict[str, Table]:
    """Return the table at a path under the name "", or the tables of a folder with several under those of its splits.

    Args:
        key: what messages call the path.

    Raises:
        DataError: There is no table, or it has no row.
    """
    if path.is_dir() and any((path / name).is_file() for name in _DATASET):
        return _open_datasets(path, key)
    if fault := find_file_fault(path):
        raise DataError(f"{key}={path} {fault}: {_GIVE}")
    suffix = path.suffix.lower()
    if suffix in _PARQUET:
        return {"": ParquetTable(path, key)}
    return {"": JsonTable(path, key) if suffix in _JSON else TextTable(path, key)}


# ---- cells ----


def clean(column: pa.ChunkedArray, name: str) -> Column:
    """Return a column as texts in `normal_form` that are not empty, lists of them, numbers, booleans or images.

    Raises:
        DataError: It holds values of another type. The message begins with `name`.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return clean(column.cast(kind.value_type), name)
    if pa.types.is_null(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return clean(column.cast(pa.string()), name)
    if pa.types.is_string(kind):
        texts = pc.utf8_normalize(pc.utf8_trim_whitespace(column), "NFC")
        return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    if pa.types.is_decimal(kind):
        return column.cast(pa.float64())
    if pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind):
        of = kind.value_type
        of_texts = pa.types.is_string(of) or pa.types.is_large_string(of) or pa.types.is_null(of)
        if of_texts or pa.types.is_integer(of):
            lists = column.cast(pa.list_(pa.string()))
            return pa.chunked_array([_clean_list(chunk) for chunk in lists.chunks], pa.list_(pa.string()))
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind) or is_image(kind):
        return column
    raise DataError(f"{name} holds values of type {kind}: give texts, numbers, booleans or lists of texts")


def is_image(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds encoded images: bytes, or a structure of bytes and path."""
    if pa.types.is_struct(kind):
        return bool(kind.get_field_index("bytes") >= 0)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def as_images(column: Column, name: str) -> Column:
    """Return a column of images as bytes, or as the names of files if there are no bytes."""
    if pa.types.is_struct(column.type):
        images = pc.struct_field(column, "bytes")
        if images.null_count < len(images) or column.type.get_field_index("path") < 0:
            return images
        return clean(pc.struct_field(column, "path"), name)
    return column if is_image(column.type) else as_names(column, name)


def as_names(column: Column, name: str) -> Column:
    """Return a column as texts. Raise DataError, which begins with the column's name, if it holds no such."""
    if is_image(column.type) or pa.types.is_list(column.type):
        raise DataError(f"{name} holds values of type {column.type}: give texts or numbers")
    return as_texts(column)


def _clean_list(lists: pa.ListArray) -> pa.ListArray:
    texts = clean(pa.chunked_array([pc.list_flatten(lists)], pa.string()), "").combine_chunks()
    if not texts.null_count:
        return _with_items(lists, texts)
    return pa.array([[text for text in row.as_py() or () if text] for row in lists], pa.list_(pa.string()))


def _with_items(lists: pa.ListArray, items: pa.Array) -> pa.ListArray:
    """Return lists with other items in the place of all of theirs. Nothing becomes an empty list."""
    counts = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(counts)), pa.int32()), items)


# ---- text with separators: CSV and its relatives ----


class TextTable(Table):
    """Rows of text with the same separator between their cells, in UTF-8, or in UTF-16 with its mark."""

    has_names = False

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        with path.open("rb") as stream:
            self._encoding = "utf-16" if stream.read(2) in _UTF_16 else "utf-8-sig"
        self._separator = ","
        line = next((line for _, line in self._iterate_lines() if line.strip("\r\n")), "")
        self._separator = next((character for character in _SEPARATORS if character in line), ",")
        first = next(self._iterate_rows(), None)
        if first is None:
            raise DataError(f"{key}={path} has no row: {_GIVE}")
        self._first_line, self.names = first[0], [normal_form(cell.strip()) for cell in first[1]]
        self._lines = array("I")

    def locate(self, row: int) -> str:
        return f"{self.path}, line {self._lines[row]}"

    def read(self, places: Sequence[int], *, skip: int = 0) -> list[Column]:
        self._lines = array("I")
        rows = islice(self._iterate_rows(), skip, None)
        chunks: list[list[pa.Array]] = [[] for _ in places]
        while chunk := list(islice(rows, _CHUNK)):
            for line, row in chunk:
                self._check(line, row, places)
                self._lines.append(line)
            for place, parts in zip(places, chunks, strict=True):
                cells = pa.chunked_array([[row[place] for _, row in chunk]], pa.string())
                parts += clean(cells, "").chunks
        return [pa.chunked_array(parts, pa.string()) for parts in chunks]

    def _check(self, line: int, row: Sequence[str], places: Sequence[int]) -> None:
        width = len(self.names)
        if len(row) <= max(places) or any(cell.strip() for cell in row[width:]):
            long = len(row) > width
            remedy = "put a cell with a separator in it in quotes" if long else "complete the row"
            raise DataError(
                f"{self.path}, line {line}, has {len(row)} columns, and line {self._first_line} has {width}: {remedy}"
            )
        if len(row) > max(places) and any("\n" in row[place].strip() for place in places):
            raise DataError(
                f"{self.path}, line {line}: a cell goes on over several lines: close its quotes, or write it in one"
            )

    def _iterate_lines(self) -> Iterator[tuple[int, str]]:
        try:
            with self.path.open(encoding=self._encoding) as stream:
                for number, line in enumerate(stream, start=1):
                    if "\0" in line:
                        raise DataError(
                            f"{self.path}, line {number}, can't be read as text: it holds a null character; save the "
                            "table as CSV in UTF-8"
                        )
                    yield number, line
        except UnicodeError as error:
            raise DataError(
                f"{self.path}{self._find_undecodable()} is not text in UTF-8: save the table as CSV in UTF-8"
            ) from error

    def _find_undecodable(self) -> str:
        if self._encoding == "utf-16":
            return ""
        with self.path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if line.decode("utf-8", "replace") != line.decode("utf-8", "ignore"):
                    return f", line {number},"
        return ""

    def _iterate_rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the rows that are not empty, each with the line at which it begins."""
        lines: list[str] = []  # of the row that is read

        def remember() -> Iterator[str]:
            for _, line in self._iterate_lines():
                lines.append(line)
                yield line

        reader = csv.reader(remember(), delimiter=self._separator)
        begin, last = 1, (1, list[str]())
        try:
            for row in reader:
                last = begin, lines.copy()
                lines.clear()
                if any(row):
                    yield begin, row
                begin = reader.line_num + 1
        except csv.Error as error:
            raise self._unreadable(begin, error) from error
        self._check_closed(*last)

    def _check_closed(self, begin: int, lines: Sequence[str]) -> None:
        """Raise DataError if the last row has a quote that is not closed, which takes all that follows as its cell."""
        try:
            list(csv.reader(lines, delimiter=self._separator, strict=True))
        except csv.Error as error:
            if "unexpected end" in str(error):
                raise self._unreadable(begin, error) from error

    def _unreadable(self, begin: int, error: csv.Error) -> DataError:
        return DataError(
            f"{self.path}, line {begin}, can't be read as a table: {error}; close the quotes of its cells, or save the "
            "table as CSV"
        )


# ---- JSON lines ----


class JsonTable(Table):
    """A JSON object a line. Its columns are the keys of the first, and others that are asked for by name."""

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        first = next(self._iterate_objects(), None)
        if first is None:
            raise DataError(f"{key}={path} has no row: {_GIVE}")
        self.names = list(first[1])
        self._lines = array("I")

    def locate(self, row: int) -> str:
        return f"{self.path}, line {self._lines[row]}"

    def find(self, name: str) -> list[int]:
        if name not in self.names and any(name in row for _, row in self._iterate_objects()):
            self.names.append(name)
        return super().find(name)

    def read(self, places: Sequence[int], *, skip: int = 0) -> list[Column]:
        self._lines = array("I")
        rows = islice(self._iterate_objects(), skip, None)
        builders = [_JsonColumn(self.names[place]) for place in places]
        while chunk := list(islice(rows, _CHUNK)):
            self._lines.extend(line for line, _ in chunk)
            for builder in builders:
                for line, row in chunk:
                    try:
                        builder.add(row.get(builder.name))
                    except ValueError as error:
                        raise DataError(f"{self.path}, line {line}: {builder.name} {error}") from error
                builder.flush()
        return [clean(builder.build(), builder.name) for builder in builders]

    def _iterate_objects(self) -> Iterator[tuple[int, dict[str, Any]]]:
        number = 0
        try:
            with self.path.open(encoding="utf-8-sig") as stream:
                for number, line in enumerate(stream, start=1):
                    if not line.strip():
                        continue
                    row = json.loads(line, object_pairs_hook=_each_once)
                    if not isinstance(row, dict):
                        raise ValueError("it holds no object")
                    yield number, row
        except UnicodeError as error:
            raise DataError(f"{self.path} is not text in UTF-8: save the table as JSON lines in UTF-8") from error
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{self.path}, line {number}, is no row of a table: {error}; write one JSON object a line, such as "
                '{"image": "photos/1.jpg", "label": "cat"}'
            ) from error


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it has a key more than once")
    return found


class _JsonColumn:
    """The values of a key: texts, which numbers and booleans become, or lists of them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._type: pa.DataType | None = None
        self._values: list[Any] = []
        self._chunks: list[pa.Array] = []

    def add(self, value: Any) -> None:
        """Raise ValueError for an object, or for a list beside texts."""
        cell = _as_cell(value)
        if cell is not None:
            kind = pa.list_(pa.string()) if isinstance(cell, list) else pa.string()
            if self._type not in (None, kind):
                raise ValueError(
                    "holds a list, and other rows a text or a number, or the other way round: write all alike"
                )
            self._type = kind
        self._values.append(cell)

    def flush(self) -> None:
        self._chunks.append(pa.array(self._values, self._type))
        self._values = []

    def build(self) -> pa.ChunkedArray:
        kind = self._type or pa.string()
        return pa.chunked_array([chunk.cast(kind) for chunk in self._chunks], kind)


def _as_cell(value: Any) -> str | list[str] | None:
    match value:
        case None:
            return None
        case bool():
            return str(value).lower()
        case int() | float():
            return None if value != value else str(value)
        case str():
            value.encode()  # half of a pair of surrogates raises UnicodeEncodeError
            return value
        case list() if all(isinstance(item, str) or type(item) is int for item in value):
            return list(map(str, value))
        case list():
            raise ValueError("holds a list of other things than texts or whole numbers: write those")
        case _:
            raise ValueError("holds an object: write a text, a number, true or false, or a list of texts")


# ---- Parquet, and folders of the library `datasets` ----


class ParquetTable(Table):
    """A Parquet file."""

    def __init__(self, path: Path, key: str) -> None:
        self.path, self._key = path, key
        path.open("rb").close()  # its OSError tells the reason, Arrow's does not
        try:
            self._file = pq.ParquetFile(path, memory_map=True)
        except _UNREADABLE as error:
            raise DataError(f"{key}={path} can't be read as Parquet ({_shorten(error)}): write it again") from error
        self.names = list(self._file.schema_arrow.names)
        if not self._file.metadata.num_rows:
            raise DataError(f"{key}={path} has no row: {_GIVE}")

    def locate(self, row: int) -> str:
        return f"{self.path}, row {row + 1}"

    def read(self, places: Sequence[int], *, skip: int = 0) -> list[Column]:
        names = list(dict.fromkeys(self.names[place] for place in places))
        if twice := [name for name in names if self.names.count(name) > 1]:
            raise DataError(f"{self.path} has several columns called {twice[0]}: write it with one of each name")
        groups = (self._file.metadata.row_group(number) for number in range(self._file.num_row_groups))
        size, free = sum(group.total_byte_size for group in groups), free_bytes()
        if size > free and any(is_image(self._file.schema_arrow.field(name).type) for name in names):
            raise DataError(
                f"{self._key}={self.path} takes {format_bytes(size)}, {format_bytes(free)} of memory are free: load it "
                "with the library datasets and save it with save_to_disk, so that it is read from the disk"
            )
        try:
            table = self._file.read(columns=names)
            table.validate(full=True)
        except _UNREADABLE as error:
            raise DataError(f"{self.path} can't be read ({_shorten(error)}): write it again") from error
        return [clean(table.column(self.names[place]), self.describe_fully(place)) for place in places]


class DatasetTable(Table):
    """A data set of the library `datasets`, whose columns stay on the disk."""

    def __init__(self, path: Path, dataset: Any) -> None:
        self.path, self._dataset = path, dataset
        self.names = list(dataset.column_names)

    def locate(self, row: int) -> str:
        return f"{self.path}, row {row + 1}"

    def read(self, places: Sequence[int], *, skip: int = 0) -> list[Column]:
        rows = self._dataset.with_format("arrow")[:]
        return [
            clean(
                self._name_classes(self.names[place], rows.column(self.names[place])),
                self.describe_fully(place),
            )
            for place in places
        ]

    def _name_classes(self, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return a column with the names of classes in the place of their numbers. -1 has no name."""
        feature = self._dataset.features[name]
        of_items = getattr(feature, "feature", None)
        names = getattr(feature, "names", None) or getattr(of_items, "names", None)
        if names is None:
            return column
        known = pa.array(names, pa.string())

        def name_numbers(numbers: pa.Array) -> pa.Array:
            return known.take(pc.if_else(pc.less(numbers, 0), None, numbers))

        if of_items is None:
            return pa.chunked_array([name_numbers(chunk) for chunk in column.chunks], pa.string())
        lists = [_with_items(chunk, name_numbers(pc.list_flatten(chunk))) for chunk in column.chunks]
        return pa.chunked_array(lists, pa.list_(pa.string()))


def _open_datasets(path: Path, key: str) -> dict[str, Table]:
    if find_spec("datasets") is None:
        raise DataError(
            f"{key}={path} is a data set of the library datasets: pip install 'accumtrain[datasets]', or save it as "
            "Parquet with its method to_parquet"
        )
    import datasets  # an extra

    try:
        found = datasets.load_from_disk(str(path))
    except _UNREADABLE as error:
        raise DataError(f"{key}={path} can't be read ({_shorten(error)}): save it again with save_to_disk") from error
    by_split = found if isinstance(found, dict) else {"": found}
    tables: dict[str, Table] = {
        name: DatasetTable(path / name, dataset) for name, dataset in by_split.items() if len(dataset)
    }
    if not tables:
        raise DataError(f"{key}={path} has no row: {_GIVE}")
    return tables


def _shorten(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
