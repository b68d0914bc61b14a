"""One or more numbers for each example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from accumtrain.data.targets.base import TargetReader, Targets, arrange, read_number_arrays
from accumtrain.data.targets.cells import CellRules, Column, Locate, find_first, show, to_numpy
from accumtrain.errors import DataError

_FEWEST_STEPS = 100  # of float32 between the smallest and the largest number
NORMAL = float(np.finfo(np.float32).tiny)  # of float32; below it numbers lose bits, and are 0 in some computations


# as data.decimal says: with groups of three digits that the other sign parts, or without
_FORMS = {
    ",": r"[+-]?([1-9]\d{0,2}(\.\d{3})+|\d*)(,\d*)?([eE][+-]?\d+)?",
    ".": r"[+-]?([1-9]\d{0,2}(,\d{3})+|\d*)(\.\d*)?([eE][+-]?\d+)?",
}
_THOUSANDS = {",": ".", ".": ","}
_GROUPED = r"^[+-]?[1-9]\d{0,2}\.\d{3}$"  # one and a quarter, or a thousand and more
_FEW_DIGITS = r"^[+-]?\d{1,3}$"


@dataclass(frozen=True)
class NumberTargets(TargetReader):
    """One or more numbers for each example. NaN is unknown: in a table an empty cell, or a text of data.missing."""

    def read_columns(self, columns: Mapping[str, Column], locate: Locate) -> Targets:
        values = [read_numbers(name, column, locate, self.rules) for name, column in columns.items()]
        stacked = np.stack(values, axis=1).astype(np.float32)
        return arrange(stacked, list(columns), self.names, self.note_missing(columns))

    def read_arrays(self, arrays: Mapping[str, np.ndarray], names: Sequence[str] = ()) -> dict[str, Targets]:
        return read_number_arrays(arrays, names, self.names)


def read_numbers(name: str, column: Column, locate: Locate, rules: CellRules, needed: str = "") -> np.ndarray:
    """Return the numbers of a column, float64 [N] that float32 can hold, NaN where a cell is empty.

    Args:
        needed: What to do if the column has none; empty: a cell may be, too.

    Raises:
        DataError: A cell holds no such number, or its comma can mean two things.
    """
    texts = rules.drop_missing(column)
    numbers = _as_numbers(texts, rules.decimal)
    if numbers is None:
        row = next(row for row, value in enumerate(texts) if value.is_valid and not _is_number(value, rules.decimal))
        text = show(column, row)
        fault = _explain_sign(text, rules.decimal) or f"which is no number: write one, or {needed or 'nothing'}"
        raise DataError(f"{locate(row)}: column {name} holds {text}, {fault}")
    if rules.decimal is None and (row := _find_thousands(texts)) >= 0:
        text = show(column, row)
        raise DataError(f"{locate(row)}: column {name} holds {text}, {_explain_sign(text, None)}")
    values = to_numpy(numbers.fill_null(np.nan), np.float64)
    values = np.where(np.isin(values, rules.missing_numbers), np.nan, values)
    with np.errstate(over="ignore"):
        too_large = np.isinf(values.astype(np.float32))
    if too_large.any():
        row = int(np.argmax(too_large))
        raise DataError(
            f"{locate(row)}: column {name} holds {show(column, row)}, which float32 can't hold: write a number of "
            f"at most 3.4e38, or {'remove the row' if needed else 'leave the cell empty'}"
        )
    return values


def _find_thousands(texts: Column) -> int:
    """Return the row of a number with a point that may part thousands; -1 if there is none.

    It may if all numbers with a point have three digits behind it, and those without one have at most three.
    """
    if not pa.types.is_string(texts.type):
        return -1
    grouped, few = (pc.match_substring_regex(texts, pattern) for pattern in (_GROUPED, _FEW_DIGITS))
    can_be = pc.all(pc.or_(grouped, few)).as_py() and pc.any(few).as_py()
    return find_first(grouped) if can_be else -1


def are_numbers(texts: Sequence[str]) -> bool:
    return _as_numbers(pa.chunked_array([list(texts)], pa.string())) is not None


def _explain_sign(text: str, decimal: str | None) -> str:
    """Return the fault of a text that is no number, if its decimal sign is the cause, and the remedy; else nothing."""
    if decimal is not None:
        return f"which is no number by {_give(decimal)}: write one, such as 1{decimal}5"
    read = {sign: _as_numbers(pa.chunked_array([[text]], pa.string()), sign) for sign in _FORMS}
    given = [f"{numbers[0].as_py():.15g} by {_give(sign)}" for sign, numbers in read.items() if numbers is not None]
    sign = "a comma" if "," in text else "a point"
    return f"with {sign}: it is {', and '.join(given)}; choose one" if given else ""


def _give(decimal: str) -> str:
    """Return the key of a decimal sign as it is written in a shell."""
    return f"\"data.decimal='{decimal}'\""


def find_rounding(numbers: np.ndarray) -> str:
    """Return the fault of numbers, floats [N] of which some differ, that float32 rounds to few values, with its remedy.

    It stands after their name, and is empty if there is none.
    """
    low, high = float(numbers.min()), float(numbers.max())
    if high - low >= _FEWEST_STEPS * max(NORMAL, float(np.spacing(np.float32(max(-low, high))))):
        return ""
    remedy = f"subtract {low:.15g} from all of them"
    if high - low < _FEWEST_STEPS * NORMAL:
        remedy = "multiply all of them, so that they differ by about 1"
    return (
        f"is between {low:.15g} and {high:.15g}, and float32 has too few values there to tell its numbers apart: "
        f"{remedy}"
    )


def _as_numbers(column: Column, decimal: str | None = None) -> pa.ChunkedArray | None:
    """Return a column as float64; None if it holds something that is no number."""
    if pa.types.is_list(column.type) or pa.types.is_boolean(column.type):
        return None
    if decimal is not None and pa.types.is_string(column.type):
        if not pc.all(pc.match_substring_regex(column, f"^({_FORMS[decimal]})$")).as_py():
            return None
        column = pc.replace_substring(pc.replace_substring(column, _THOUSANDS[decimal], ""), decimal, ".")
    try:
        return column.cast(pa.float64(), safe=False)
    except pa.ArrowInvalid:
        return None


def _is_number(value: pa.Scalar, decimal: str | None) -> bool:
    return _as_numbers(pa.chunked_array([[value.as_py()]], value.type), decimal) is not None
