"""Tables by Arrow: text with separators, JSON lines, Parquet, and folders of the library `datasets`.

A place in a message is a row, which counts as in a spreadsheet: the row of the names is the first one of a CSV file.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from accumtrain.console import format_bytes
from accumtrain.data.local_files import check_unpacked, find_file_fault
from accumtrain.data.table.arrow_file import check_uncompressed
from accumtrain.data.table.parquet import TooLargeError, read_columns, without_dictionaries
from accumtrain.errors import DataError
from accumtrain.fields import normal_form

_SEPARATORS = "\t;, "  # the first of them that the first row has outside of quotes
_QUOTED = re.compile(r'(?<![^\t;, ])"(?:[^"]|"")*"|(?<![^\t;,])"(?:[^"]|"")*$')  # cells, the last may go on
_JSON = (".jsonl", ".ndjson", ".json")
_PARQUET = (".parquet", ".pq")
_DATASET = ("state.json", "dataset_dict.json")  # in a folder that `save_to_disk` wrote: of one data set, of several
_BLOCK = 2**24  # bytes that are read together; no row is longer
_FROM_DISK = "load it with the library datasets and save it with save_to_disk, so that it is read from the disk"
_MANY_BRACKETS = 500  # in a line; fewer can't be too deep
_GIVE = "give the table of the examples"
# Arrow raises these for a damaged file, the others for names in it that are no UTF-8, or for sizes
_UNREADABLE = (pa.ArrowException, OSError, ValueError, MemoryError, TypeError, KeyError)
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")

Columns = Callable[[Sequence[str]], list[pa.ChunkedArray]]


@dataclass(frozen=True)
class Table:
    """An opened table.

    Attributes:
        path: The file or folder.
        names: Those of the columns; their numbers from 1 on, where the first row does not name them.
        rows: The number of rows.
        columns: Reads the columns of some names, which are in the table once, as they are stored. Raises DataError.
        locate: Returns the place of a row, which is counted from 0, in words, such as "photos.csv, row 17".
        header: The names are those of the first row.
        texts: The names of the columns whose cells are texts.
    """

    path: Path
    names: list[str]
    rows: int
    columns: Columns
    locate: Callable[[int], str]
    header: bool = False
    texts: Sequence[str] = ()

    def find(self, key: str, value: str | int) -> str:
        """Return the name of the column of a name, or of a number from 1 on.

        Args:
            key: What messages call the value.
            value: A text is a name, as another column may be at the number that it looks like.

        Raises:
            DataError: There is no such column, or several have its name.
        """
        name = normal_form(str(value))
        if name not in self.names and isinstance(value, int) and 1 <= value <= len(self.names):
            name = self.names[value - 1]
        if (count := self.names.count(name)) == 1:
            return name
        if count:
            raise DataError(f"{key}={value}: {self.path} has {count} columns called {name}: give them different names")
        renamed = f", or call one of them {name}" if isinstance(value, str) else ""
        raise DataError(
            f"{key}={value}: {self.path} has no column {value}, only {', '.join(self.names)}; give the name "
            f"of one, or its number from 1 on, by {key}{renamed}"
        )

    def describe(self, name: str) -> str:
        """Return the number of a column from 1 on, and its name."""
        number = str(self.names.index(name) + 1)
        return name if name == number else f"{number} ({name})"

    def describe_fully(self, name: str) -> str:
        """Return a column with its table, for the beginning of a message."""
        return f"{self.path}: column {self.describe(name)}"


def open_tables(path: Path, key: str, *, header: bool = True) -> dict[str, Table]:
    """Return the table at a path under the name "", or the tables of a folder with several under those of its splits.

    Args:
        key: What messages call the path.
        header: The first row of text with separators names the columns.

    Raises:
        DataError: There is no table, it can't be read, or it has no row.
    """
    if path.is_dir() and any((path / name).exists() for name in _DATASET):
        return _open_datasets(path, key)
    if fault := find_file_fault(path):
        raise DataError(f"{key}={path} {fault}: {_GIVE}")
    check_unpacked(path, key)
    suffix = path.suffix.lower()
    if suffix in _PARQUET:
        table = _open_parquet(path, key)
    else:
        table = _open_json(path) if suffix in _JSON else _SeparatedText(path, header=header).table
    if not table.rows:
        raise DataError(f"{key}={path} has no row: {_GIVE}")
    return {"": table}


def _count_from_one(path: Path) -> Callable[[int], str]:
    return lambda row: f"{path}, row {row + 1}"


def _names_of_texts(names: Sequence[str], schema: pa.Schema) -> list[str]:
    """Return those of the names of columns, in the order of the schema, whose cells are texts."""
    kinds = [without_dictionaries(kind) for kind in schema.types]
    are_texts = [pa.types.is_string(kind) or pa.types.is_large_string(kind) for kind in kinds]
    return [name for name, is_text in zip(names, are_texts, strict=True) if is_text]


def _shorten(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


# ---- cells ----


def clean(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
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
        return pa.chunked_array([_clean_texts(chunk) for chunk in column.chunks], pa.string())  # each step is a copy
    if pa.types.is_decimal(kind) or pa.types.is_float16(kind):  # for which Arrow has few functions
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
        number = kind.get_field_index("bytes")
        return number >= 0 and (is_image(kind.field(number).type) or pa.types.is_null(kind.field(number).type))
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _clean_texts(texts: pa.StringArray) -> pa.StringArray:
    normal = pc.utf8_normalize(pc.utf8_trim_whitespace(texts), "NFC")
    return pc.if_else(pc.equal(normal, ""), pa.scalar(None, pa.string()), normal)


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


class _SeparatedText:
    """Text with the same separator between all cells, in UTF-8, or in UTF-16 with its mark. Blank rows are none.

    All is read once to be checked, and columns once more when they are asked for.
    """

    def __init__(self, path: Path, *, header: bool) -> None:
        self._path = path
        with path.open("rb") as stream:
            self._encoding = "utf-16" if stream.read(2) in _UTF_16 else "utf-8-sig"
        self._blank, self._separator, cells = self._read_first_row()
        self._keys = list(map(str, range(len(cells))))  # of columns, as their names may not be unique
        self._check_quotes()
        self._rows = self._list_rows()[header:]  # int32, their numbers from 0 on for the first that is not blank
        names = [normal_form(cell.strip()) for cell in cells] if header else [str(int(key) + 1) for key in self._keys]
        rows = len(self._rows)
        self.table = Table(
            path, names, rows, lambda chosen: self._read(map(names.index, chosen)), self._at, header, names
        )

    def _at(self, row: int) -> str:
        return f"{self._path}, row {self._blank + self._rows[row] + 1}"

    def _open(self) -> Any:
        return self._path.open(encoding=self._encoding, errors="replace", newline="")

    def _read_first_row(self) -> tuple[int, str, list[str]]:
        """Return the number of blank lines before the first row, the separator, and the cells of the first row."""
        with self._open() as stream:
            lines = ((number, line) for number, line in enumerate(stream) if line.strip("\r\n"))
            blank, line = next(lines, (0, ""))
            if "\0" in line:
                raise self._unreadable(blank + 1, "it holds a null character")
            plain = _QUOTED.sub("", line)
            separator = next((character for character in _SEPARATORS if character in plain), ",")
            try:
                return blank, separator, next(csv.reader(chain([line], stream), delimiter=separator), [])
            except csv.Error as error:
                raise self._unreadable(blank + 1, str(error)) from error

    def _check_quotes(self) -> None:
        """Raise DataError for a quote that is not closed, which Arrow takes to the end of the file."""
        with self._open() as stream:
            if sum(part.count('"') for part in iter(lambda: stream.read(2**20), "")) % 2 == 0:
                return
            stream.seek(0)
            row = 0
            try:
                for _ in csv.reader(stream, delimiter=self._separator, strict=True):
                    row += 1
            except csv.Error as error:
                raise self._unreadable(row + 1, str(error)) from error

    def _unreadable(self, row: int, reason: str) -> DataError:
        return DataError(
            f"{self._path}, row {row}, can't be read as a table: {reason}; close the quotes of its cells, or save the "
            "table as CSV in UTF-8"
        )

    def _list_rows(self) -> np.ndarray:
        """Return the numbers of the rows with a cell that is not empty, int32, from 0 on for the first of them."""
        found, first = [np.zeros(0, np.int32)], 0
        for batch in self._iterate(self._keys) if self._keys else ():
            for column in batch.columns:
                if (row := pc.index(pc.match_substring(column, "\0"), True).as_py()) >= 0:
                    raise self._unreadable(self._blank + first + row + 1, "it holds a null character")
            empty = reduce(pc.and_, (pc.equal(column, "") for column in batch.columns))
            found.append(first + np.flatnonzero(~np.asarray(empty)).astype(np.int32))
            first += batch.num_rows
        return np.concatenate(found)

    def _read(self, numbers: Iterable[int]) -> list[pa.ChunkedArray]:
        """Return the columns of numbers from 0 on."""
        keys = [self._keys[number] for number in numbers]
        batches, first = list[pa.RecordBatch](), 0
        for batch in self._iterate(list(dict.fromkeys(keys))):
            begin, end = np.searchsorted(self._rows, (first, first + batch.num_rows))
            own = self._rows[begin:end] - first
            first += batch.num_rows
            batches.append(batch if len(own) == batch.num_rows else batch.take(pa.array(own)))
        return [pa.chunked_array([batch.column(key) for batch in batches], pa.string()) for key in keys]

    def _iterate(self, keys: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield columns in parts. Raise DataError for a row of another width, and for what is no text."""
        invalid = list[Any]()

        def refuse(row: Any) -> str:
            invalid.append(row)
            return "error"

        encoding = "utf-16" if self._encoding == "utf-16" else "utf8"
        try:
            with pyarrow.csv.open_csv(
                pa.OSFile(str(self._path)),  # a path that ends in .gz would be unpacked
                pyarrow.csv.ReadOptions(  # with one thread rows are numbered
                    use_threads=False,
                    block_size=_BLOCK,
                    column_names=self._keys,
                    skip_rows=self._blank,
                    encoding=encoding,
                ),
                pyarrow.csv.ParseOptions(
                    delimiter=self._separator,
                    newlines_in_values=True,
                    ignore_empty_lines=False,
                    invalid_row_handler=refuse,
                ),
                pyarrow.csv.ConvertOptions(
                    column_types=dict.fromkeys(self._keys, pa.string()), include_columns=list(keys)
                ),
            ) as reader:
                yield from reader
        except (pa.ArrowInvalid, UnicodeError) as error:
            raise self._explain(error, invalid) from error

    def _explain(self, error: Exception, invalid: Sequence[Any]) -> DataError:
        for row in invalid:
            long = row.actual_columns > row.expected_columns
            remedy = "put a cell with a separator in it in quotes" if long else "complete the row"
            return DataError(
                f"{self._path}, row {row.number}, has {row.actual_columns} columns, and row {self._blank + 1} has "
                f"{row.expected_columns}: {remedy}"
            )
        at = f", row {found[1]}," if (found := re.search(r"Row #(\d+)", str(error))) else ""
        if isinstance(error, UnicodeError) or "UTF8" in str(error):
            return DataError(f"{self._path}{at} is not text in UTF-8: save the table as CSV in UTF-8")
        return DataError(
            f"{self._path}{at} can't be read as a table ({_shorten(error)}): save it as CSV in UTF-8, with a row of "
            f"less than {format_bytes(_BLOCK)} for each example"
        )


# ---- JSON lines ----


def _open_json(path: Path) -> Table:
    """Return the table of a JSON object a line. Its columns are the keys of all of them."""
    _check_depth(path)
    try:
        found = _read_json(path, None)
        times = [pa.field(field.name, texts) for field in found.schema if (texts := _without_times(field.type))]
        if times:  # texts that look like times
            found = _read_json(path, pa.schema(times)).select(found.column_names)
        found.validate(full=True)  # of UTF-8
    except (pa.ArrowException, UnicodeError) as error:
        if "Empty JSON" in str(error):
            return Table(path, [], 0, lambda names: [], _count_from_one(path))
        raise _explain_json(path, error) from error
    own = list(map(normal_form, found.column_names))
    return Table(
        path,
        own,
        found.num_rows if found.num_columns else 0,
        lambda names: [found.column(own.index(name)) for name in names],
        _count_from_one(path),
        texts=_names_of_texts(own, found.schema),
    )


def _check_depth(path: Path) -> None:
    """Raise DataError for a line whose brackets are so deep that Arrow, which calls itself for each, would crash."""
    with path.open("rb") as stream:
        for row, line in enumerate(filter(bytes.strip, stream), 1):
            if line.count(b"{") + line.count(b"[") > _MANY_BRACKETS:
                try:
                    json.loads(line)
                except RecursionError as error:
                    raise DataError(
                        f"{path}, row {row}, holds lists or objects that are too deep: write a flat row"
                    ) from error
                except ValueError:
                    continue  # Arrow tells what is wrong


def _read_json(path: Path, schema: pa.Schema | None) -> pa.Table:
    return pyarrow.json.read_json(
        path, pyarrow.json.ReadOptions(block_size=_BLOCK), pyarrow.json.ParseOptions(explicit_schema=schema)
    )


def _without_times(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of the texts that Arrow takes as times; None of another type."""
    if pa.types.is_list(kind):
        return pa.list_(pa.string()) if pa.types.is_timestamp(kind.value_type) else None
    return pa.string() if pa.types.is_timestamp(kind) else None


def _explain_json(path: Path, error: Exception) -> DataError:
    """Return what is wrong with JSON lines. Arrow counts from the beginning of a block, so they are read again."""
    form = 'write one JSON object a line, such as {"image": "photos/1.jpg", "label": "cat"}'
    row, kinds = 1, dict[str, str]()
    try:
        with path.open(encoding="utf-8-sig") as stream:
            for line in filter(str.strip, stream):
                _check_row(line, kinds)
                row += 1
    except UnicodeDecodeError:
        return DataError(f"{path} is not text in UTF-8: save the table as JSON lines in UTF-8")
    except (ValueError, RecursionError) as fault:
        return DataError(f"{path}, row {row}, is no row of a table: {fault}; {form}")
    return DataError(f"{path} can't be read as JSON lines ({_shorten(error)}): {form}")


def _check_row(line: str, kinds: dict[str, str]) -> None:
    """Raise ValueError for a line that is no object, or has values of other kinds than the lines before."""
    values = json.loads(line, object_pairs_hook=_each_once, parse_float=_parse_float)
    if not isinstance(values, dict):
        raise ValueError("it holds no object")
    json.dumps(values, ensure_ascii=False).encode()  # half of a pair of surrogates raises UnicodeEncodeError
    for name, value in values.items():
        kind = _kind_of(value)
        if kind and kinds.setdefault(name, kind) != kind:
            raise ValueError(f"{name} holds {kind}, and the rows above hold {kinds[name]}: write all alike")


def _kind_of(value: Any) -> str:
    """Return the kind of a value in words; empty of null."""
    match value:
        case None:
            return ""
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "a text"
        case list():
            return "a list"
        case _:
            return "an object"


def _parse_float(digits: str) -> float:
    if math.isinf(float(digits)):
        raise ValueError(f"{digits} is beyond all floats")
    return float(digits)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it has a key more than once")
    return found


# ---- Parquet, and folders of the library `datasets` ----


def _open_parquet(path: Path, key: str) -> Table:
    try:
        file = pyarrow.parquet.ParquetFile(path, memory_map=True)
    except _UNREADABLE as error:
        raise DataError(f"{key}={path} can't be read as Parquet ({_shorten(error)}): write it again") from error
    schema = file.schema_arrow

    def read(names: Sequence[str]) -> list[pa.ChunkedArray]:
        with_images = any(is_image(without_dictionaries(schema.field(name).type)) for name in names)
        try:
            found = read_columns(path, list(dict.fromkeys(names)))
        except TooLargeError as error:
            remedy = _FROM_DISK if with_images else "give a table of fewer rows"
            raise DataError(f"{key}={path} takes {error}: {remedy}") from error
        except _UNREADABLE as error:
            raise DataError(f"{path} can't be read ({_shorten(error)}): write it again") from error
        return [found.column(name) for name in names]

    names = list(schema.names)
    of_texts = _names_of_texts(names, schema)
    return Table(path, names, file.metadata.num_rows, read, _count_from_one(path), texts=of_texts)


def _open_datasets(path: Path, key: str) -> dict[str, Table]:
    if find_spec("datasets") is None:
        raise DataError(
            f"{key}={path} is a data set of the library datasets: pip install 'accumtrain[datasets]', or save it as "
            "Parquet with its method to_parquet"
        )
    import datasets  # an extra

    _check_saved_files(path, key)
    with _saved_whole(path, key):
        found = datasets.load_from_disk(str(path))
        by_split = found if isinstance(found, dict) else {"": found}
        tables = {name: _table_of(path / name, dataset, key) for name, dataset in by_split.items() if len(dataset)}
    if not tables:
        raise DataError(f"{key}={path} has no row: {_GIVE}")
    return tables


def _check_saved_files(path: Path, key: str) -> None:
    """Raise DataError for what is no file in a folder of `save_to_disk`, as the library would wait for a FIFO."""
    for file in path.rglob("*"):
        if not file.is_dir() and not file.is_file():
            raise DataError(f"{key}={path}: {file} {find_file_fault(file)}: save it again with save_to_disk")
    state_file, dict_file = _DATASET
    for named in path.rglob(dict_file):
        with _saved_whole(named, key):
            for split in json.loads(named.read_text(encoding="utf-8"))["splits"]:
                _check_inside(named, split, key)
    for state in path.rglob(state_file):
        with _saved_whole(state, key):
            entries = json.loads(state.read_text(encoding="utf-8"))["_data_files"]
            if entries == []:  # which the library can't read, either
                raise DataError(f"{key}={state.parent} has no row: {_GIVE}")
            for entry in entries:
                _check_inside(state, entry["filename"], key)
                file = state.parent / entry["filename"]
                if fault := find_file_fault(file):
                    raise DataError(f"{key}={path}: {entry['filename']} {fault}: save it again with save_to_disk")
                with _saved_whole(file, key):
                    check_uncompressed(file)


def _check_inside(file: Path, name: str, key: str) -> None:
    """Raise DataError for a name in a file of the folder that leads out of it."""
    if Path(name).name != name:
        raise DataError(f"{key}={file} names {name!r}, which is no name in its folder: save it again with save_to_disk")


@contextmanager
def _saved_whole(path: Path, key: str) -> Iterator[None]:
    """Raise DataError for what the library `datasets` can't read. It trusts the JSON and the arrays of a folder."""
    try:
        yield
    except (*_UNREADABLE, AttributeError, LookupError, RuntimeError, ArithmeticError, AssertionError) as error:
        raise DataError(f"{key}={path} can't be read ({_shorten(error)}): save it again with save_to_disk") from error


def _table_of(path: Path, dataset: Any, key: str) -> Table:
    """Return a data set of the library `datasets` as a table, whose columns stay on the disk."""

    def read(names: Sequence[str]) -> list[pa.ChunkedArray]:
        with _saved_whole(path, key):
            rows = dataset.with_format("arrow")[:]
            rows.validate(full=True)
            return [_name_classes(dataset.features[name], rows.column(name)) for name in names]

    names = list(dataset.column_names)
    of_texts = [name for name in names if getattr(dataset.features[name], "dtype", "").endswith("string")]
    return Table(path, names, len(dataset), read, _count_from_one(path), texts=of_texts)


def _name_classes(feature: Any, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column with the names of classes in the place of their numbers. -1 has no name."""
    of_items = getattr(feature, "feature", None)
    names = getattr(feature, "names", None) or getattr(of_items, "names", None)
    if names is None:
        return column
    known = pa.array(names, pa.string())

    def name_numbers(numbers: pa.Array) -> pa.Array:
        unknown = pc.or_(pc.less(numbers, -1), pc.greater_equal(numbers, len(known)))
        if (at := pc.index(unknown, True).as_py()) >= 0:
            raise ValueError(f"class {numbers[at]} has no name, the names are those of 0..{len(known) - 1}")
        return known.take(pc.if_else(pc.less(numbers, 0), None, numbers))

    if of_items is None:
        return pa.chunked_array([name_numbers(chunk) for chunk in column.chunks], pa.string())
    lists = [_with_items(chunk, name_numbers(pc.list_flatten(chunk))) for chunk in column.chunks]
    return pa.chunked_array(lists, pa.list_(pa.string()))
