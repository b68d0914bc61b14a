"""Columns of Parquet files. A few bytes of one can stand for gigabytes, so sizes are checked before values are made.

A value that a file stores once for many rows stays so until all are counted. Values within lists and structures are
read a few rows at a time, and counted as they come.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from accumtrain.console import format_bytes
from accumtrain.process.machine import spare_bytes

_CHUNK = 2**28  # bytes of a column that are made together
_FEWEST_ROWS, _MOST_ROWS = 8, 4096  # that are read together
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8, "BYTE_ARRAY": 4}  # of an index
_COPIES_OF_LISTS = 4  # of labels, while they are made alike
_BYTES_OF_A_ROW = 64  # of memory, for names, targets and places


class TooLargeError(Exception):
    """The message says how much memory a table takes, and how much is free."""


def read_columns(path: Path, names: list[str]) -> pa.Table:
    """Return columns of a Parquet file. A value that it stores once for many rows is multiplied only if all fit.

    Raises:
        TooLargeError: they do not fit into the free memory.
    """
    footer = pyarrow.parquet.read_metadata(path, memory_map=True)
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    leaves = [(number, footer.schema.column(number)) for number in range(footer.num_columns)]
    plain = [leaf.path for _, leaf in leaves if leaf.path in names]
    nested = [name for name in names if name not in plain]
    own = [
        number for number, leaf in leaves if leaf.path in plain or leaf.path.startswith(tuple(f"{n}." for n in nested))
    ]
    sizes = [
        sum(_count_stored(group.column(number), footer.schema.column(number)) for number in own) for group in groups
    ]
    texts = [leaf.path for _, leaf in leaves if leaf.path in plain and leaf.physical_type == "BYTE_ARRAY"]
    again = [number for number, leaf in leaves if leaf.path in texts]  # each value is read, and then multiplied
    made = sum(group.column(number).total_uncompressed_size for group in groups for number in again)
    spare = spare_bytes()
    _check_size(max(sum(sizes) + made, footer.num_rows * _BYTES_OF_A_ROW), spare)
    with pyarrow.parquet.ParquetFile(
        path, memory_map=True, read_dictionary=texts, page_checksum_verification=True
    ) as file:
        kinds = {name: without_dictionaries(file.schema_arrow.field(name).type) for name in names}
        # Arrow can't read dictionaries within lists and structures, so few rows at once; a value may have all the bytes
        few = max(_FEWEST_ROWS, min(_MOST_ROWS, _CHUNK // max([1, *sizes])))
        with_lists = any(pa.types.is_nested(kind) and not pa.types.is_struct(kind) for kind in kinds.values())
        copies = _COPIES_OF_LISTS if with_lists else 1
        found = _read_in_parts(file, nested, few, lambda size: _check_size(copies * size, spare)) if nested else []
        stored = file.read(columns=plain)
    stored.validate(full=True)
    read = sum(table.get_total_buffer_size() for table in (stored, *found))
    repeated = [chunk for column in stored.columns for chunk in column.chunks if pa.types.is_dictionary(chunk.type)]
    _check_size(read + sum(map(_count_bytes, repeated)), spare)
    columns = dict(zip(nested, found, strict=True)) | {
        name: _multiply(stored.column(name), kinds[name]) for name in plain
    }
    return pa.table({name: columns[name] for name in names})


def _count_stored(chunk: Any, leaf: Any) -> int:
    """Return the bytes of a part of a column as it is read, of which a file stores a run of the same value once."""
    return max(chunk.total_uncompressed_size, chunk.num_values * _WIDTHS.get(chunk.physical_type, leaf.length or 0))


def _read_in_parts(file: Any, names: list[str], rows: int, check: Callable[[int], None]) -> list[pa.ChunkedArray]:
    """Return columns, of which `rows` are read at once. `check` raises TooLargeError for too many bytes."""
    parts, waiting, read, joined = list[pa.Table](), list[pa.RecordBatch](), 0, 0
    for batch in file.iter_batches(rows, columns=names):
        waiting.append(batch)
        read += batch.nbytes
        check(read)
        if read - joined > _CHUNK:
            parts.append(pa.Table.from_batches(waiting).combine_chunks())
            waiting, joined = [], read
    if waiting or not parts:
        rest = pa.Table.from_batches(
            waiting, waiting[0].schema if waiting else file.schema_arrow.empty_table().select(names).schema
        )
        parts.append(rest.combine_chunks())
    whole = pa.concat_tables(parts)
    whole.validate(full=True)
    return list(whole.columns)


def _check_size(size: int, spare: int) -> None:
    if size > spare:
        raise TooLargeError(f"{format_bytes(size)} or more, {format_bytes(spare)} of memory are free")


def _count_bytes(array: pa.Array) -> int:
    """Return the bytes of an array with each value of a dictionary as often as it is meant."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        values = array.dictionary
        if pa.types.is_dictionary(values.type) or not _has_length(values.type):
            return int(array.nbytes)
        lengths = pc.cast(pc.binary_length(values), pa.int64())
        return int(array.indices.nbytes + (pc.sum(lengths.take(array.indices)).as_py() or 0))
    return int(array.nbytes)


def _has_length(kind: pa.DataType) -> bool:
    plain = pa.types.is_string(kind) or pa.types.is_binary(kind)
    return bool(plain or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind))


def _multiply(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column of dictionaries as one of values, in chunks that offsets of 32 bits can count."""
    parts, left = list[pa.Array](), column.chunks[::-1]
    while left:
        chunk = left.pop()
        if len(chunk) > 1 and _count_bytes(chunk) > _CHUNK:
            half = len(chunk) // 2
            left += [chunk[half:], chunk[:half]]
        else:
            parts.append(chunk.cast(kind))
    return pa.chunked_array(parts, kind)


def without_dictionaries(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind
