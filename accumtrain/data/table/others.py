"""The columns of a table that a run does not read, which job=predict copies to its answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from accumtrain.data.local_files import list_first, readable
from accumtrain.data.table.reader import Table, open_tables
from accumtrain.runs.files import to_json_value

Row = dict[str, Any]  # cells by the names of their columns, as JSON values


def read_others(path: Path, key: str, used: Sequence[str | int], *, header: bool = True) -> tuple[list[Row], list[str]]:
    """Return the cells of each row of a table besides the columns that are used, and notes of those left out.

    Args:
        key: That gives the table, for messages.

    Raises:
        DataError: It can't be read.
    """
    rows, notes = list[Row](), list[str]()
    with readable():
        tables = open_tables(path, key, header=header)
    for table in tables.values():
        cells, left_out = _read_cells(table, [table.find(key, name) for name in used])
        rows += [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)] or [{}] * table.rows
        if left_out:
            told = f"{table.path}: not copied to the answers, as they are images, nested or of the same name"
            notes.append(f"{told}: {list_first(left_out)}")
    return rows, notes


def _read_cells(table: Table, used: Sequence[str]) -> tuple[dict[str, list[Any]], list[str]]:
    """Return the cells of each other column by its name, and the names of columns that can't be copied."""
    counts = Counter(table.names)
    names = [name for name in table.names if name not in used and counts[name] == 1]
    cells, left_out = dict[str, list[Any]](), [name for name, count in counts.items() if count > 1]
    for name, column in zip(names, table.columns(names), strict=True):
        if (plain := _as_plain(column)) is None:
            left_out.append(name)
        else:
            cells[name] = to_json_value(plain.to_pylist())
    return cells, left_out


def _as_plain(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Return a column of texts, numbers, booleans or lists of these; others as texts; None of what is no text."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _as_plain(column.cast(kind.value_type))
    of = kind.value_type if pa.types.is_list(kind) else kind
    if any(test(of) for test in (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_null)):
        return column
    if pa.types.is_float32(of) or pa.types.is_float64(of):
        return column
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return None
    return column.cast(pa.string())
