"""Cells of a table that hold targets: what is unknown, and the words for yes and no."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from accumtrain.console import format_things
from accumtrain.data.config import TableConfig
from accumtrain.data.local_files import list_first
from accumtrain.errors import DataError

SHOWN = 40  # characters of a value in a message
EXACT = 2**53  # floats below hold every whole number
WORDS = ("1", "1.0", "true", "yes", "0", "0.0", "false", "no")  # of a label, in any case
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_SIGNS = re.compile(r"[?*.#~_-]+")
_FALSE = 4  # index of the first of them that means 0

# Texts in `normal_form` that are not empty, lists of them, numbers or booleans; null is an empty cell.
Column: TypeAlias = pa.ChunkedArray
Locate = Callable[[int], str]  # from the index of a row to its place in words, such as "photos.csv, row 17"


@dataclass(frozen=True)
class CellRules:
    """The keys of a table about its cells: `data.missing`, `data.decimal` and `data.label_separator`."""

    missing: tuple[str, ...] = TableConfig.MISSING
    decimal: str | None = None
    separator: str | None = None

    @classmethod
    def of(cls, config: TableConfig) -> CellRules:
        return cls(tuple(config.missing), config.decimal, config.label_separator)

    @property
    def missing_numbers(self) -> list[float]:
        """The numbers among the texts that mean that nothing is known."""
        return [float(word) for word in self.missing if _NUMBER.fullmatch(word)]

    def is_missing(self, column: pa.Array | Column) -> Any:
        """Return which texts or numbers mean that nothing is known, bool [N]; null for an empty cell."""
        if not pa.types.is_string(column.type):
            return pc.is_in(
                column.cast(pa.float64(), safe=False), value_set=pa.array(self.missing_numbers, pa.float64())
            )
        words = pa.array([word.lower() for word in self.missing], pa.string())
        return pc.if_else(column.is_valid(), pc.is_in(pc.utf8_lower(column), value_set=words), None)

    def drop_missing(self, column: Column) -> Column:
        """Return a column in which the texts or numbers that mean that nothing is known are null."""
        if not (pa.types.is_string(column.type) or _is_of_numbers(column)):
            return column
        return pc.if_else(self.is_missing(column), pa.scalar(None, column.type), column)

    def note_missing(self, name: str, column: Column) -> list[str]:
        """Return a note of the texts of a column that mean that nothing is known, if there are some."""
        if not (pa.types.is_string(column.type) or _is_of_numbers(column)):
            return []
        counts = column.filter(self.is_missing(column)).value_counts()
        words = sorted(map(str, counts.field("values").to_pylist()))
        count = sum(counts.field("counts").to_pylist())
        if not count:
            return []
        where = f"column {name} is unknown in {format_things(count, 'row')}, with {list_first(words)} in it"
        return [f"{where}; data.missing=[] takes such texts as they are"]

    def note_signs(self, name: str, column: Column) -> list[str]:
        """Return a note of the texts of a column that are signs alone, as these may mean that nothing is known."""
        found = column.unique().drop_null().to_pylist() if pa.types.is_string(column.type) else []
        signs = sorted(text for text in found if _SIGNS.fullmatch(text) and text.lower() not in self.missing)
        if not signs:
            return []
        unknown = [*signs, *sorted(text for text in found if text.lower() in self.missing)]
        key = f"'data.missing={json.dumps(unknown)}'"
        return [f"column {name} has the class {list_first(signs)}: if it means unknown, {key} says so"]


def _is_of_numbers(column: Column) -> bool:
    return bool(pa.types.is_integer(column.type) or pa.types.is_floating(column.type))


def read_words(name: str, column: Column, locate: Locate, rules: CellRules) -> np.ndarray:
    """Return the values of one label, float32 [N]: 1, 0, or NaN where it is unknown.

    Raises:
        DataError: A cell holds something else.
    """
    if pa.types.is_list(column.type):
        known, found = column.is_valid(), pa.nulls(len(column), pa.float32())
    elif pa.types.is_string(column.type):
        lower = pc.utf8_lower(rules.drop_missing(column))
        words = pc.index_in(lower, value_set=pa.array(WORDS, pa.string()))
        known, found = lower.is_valid(), pc.less(words, _FALSE).cast(pa.float32())
    else:
        numbers = rules.drop_missing(column).cast(pa.float64(), safe=False)
        known = pc.invert(numbers.is_null(nan_is_null=True))
        found = pc.if_else(pc.is_in(numbers, value_set=pa.array([0, 1], pa.float64())), numbers, None)
    wrong = pc.and_(known, found.is_null())
    if pc.any(wrong).as_py():
        row = find_first(wrong)
        raise DataError(
            f"{locate(row)}: column {name} holds {show(column, row)}: write 1, true or yes for an image that has the "
            "label, 0, false or no for one that has not, and nothing if it is unknown"
        )
    return to_numpy(found.fill_null(np.nan), np.float32)


def are_words(column: Column, rules: CellRules) -> bool:
    """Return whether all texts of a column are words for the value of one label."""
    found = pc.utf8_lower(rules.drop_missing(column.unique()))
    return bool(pc.all(pc.is_in(found, value_set=pa.array([*WORDS, None], pa.string()))).as_py())


def as_texts(column: Column) -> Column:
    """Return numbers and booleans as texts. A whole number has no point, as a column with gaps holds floats."""
    if pa.types.is_floating(column.type):
        column = pc.if_else(column.is_null(nan_is_null=True), None, column)
        whole = pc.all(pc.and_(pc.equal(pc.floor(column), column), pc.less(pc.abs(column), EXACT))).as_py()
        column = column.cast(pa.int64()) if whole else column
    return column if pa.types.is_string(column.type) else column.cast(pa.string())


def find_first(mask: pa.Array | pa.ChunkedArray) -> int:
    """Return the index of the first True; -1 if there is none."""
    return int(pc.index(mask, True).as_py())


def show(column: Column, row: int) -> str:
    return shorten(str(column[row].as_py()))


def shorten(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def to_numpy(column: pa.Array | pa.ChunkedArray, dtype: type) -> np.ndarray:
    return np.asarray(column.to_numpy(), dtype) if isinstance(column, pa.ChunkedArray) else np.asarray(column, dtype)
