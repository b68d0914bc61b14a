"""Targets as people store them: a class for each example, several labels, or numbers.

A `TargetReader` reads them from the columns of a table, or from arrays.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from accumtrain.data.local_files import list_first
from accumtrain.errors import DataError
from accumtrain.fields import format_value, normal_form, suggest_names

_EXACT = 2**53  # floats below hold every whole number
_WORDS = ("1", "1.0", "true", "yes", "0", "0.0", "false", "no")  # of a label, in any case
_FALSE = 4  # index of the first of them that means 0
_UNKNOWN = ("nan", "null")  # the same as an empty cell
_SEPARATORS = "[;|]"  # between the names in a text, unless a separator is given
_MOST = 10_000  # names in lists: more are the words of a text
_SHOWN = 40  # characters of a value in a message
_FEWEST_STEPS = 100  # of float32 between the smallest and the largest number
NORMAL = float(np.finfo(np.float32).tiny)  # of float32; below it numbers lose bits, and are 0 in some computations

# Texts in `normal_form` that are not empty, lists of them, numbers or booleans; null is an empty cell.
Column: TypeAlias = pa.ChunkedArray
Locate = Callable[[int], str]  # from the index of a row to its place in words, such as "photos.csv, row 17"


@dataclass(frozen=True)
class Targets:
    """The targets of N examples.

    Attributes:
        values: Integers [N], classes from 0 on, -1 for an example without one. Or float32 [N, T]: labels of 0 and 1, or
            numbers. NaN is unknown, and a row of NaN alone an example without a target.
        names: The names of the classes, labels or numbers; empty if classes are numbered.
        count: The number of classes, or T.
        notes: About them, for the user.
    """

    values: np.ndarray
    names: list[str]
    count: int
    notes: list[str] = field(default_factory=list)

    @property
    def known(self) -> np.ndarray:
        """The examples that have a target, bool [N]."""
        return self.values >= 0 if self.values.ndim == 1 else ~np.isnan(self.values).all(axis=1)

    def describe(self, index: int) -> str:
        """Return the target of an example as text."""
        value = self.values[index]
        return self.names[int(value)] if value.ndim == 0 else ",".join(map(str, value.tolist()))


class TargetReader(ABC):
    """A way to read targets.

    Attributes:
        names: Those that the labels or numbers must have, in their order; empty: those that are found.
    """

    names: Sequence[str] = ()

    @abstractmethod
    def read_columns(self, columns: Mapping[str, Column], locate: Locate) -> Targets:
        """Return the targets in columns of a table, which are given by their names.

        Raises:
            DataError: A cell holds no such target. The message says its place.
        """

    @abstractmethod
    def read_arrays(self, arrays: Mapping[str, np.ndarray], names: Sequence[str] = ()) -> dict[str, Targets]:
        """Return the targets in arrays, which are given by their names. All have the same names.

        Args:
            arrays: Each [N] or [N, T], of numbers or texts.
            names: Those of the T labels or numbers; empty: they are numbered.

        Raises:
            DataError: An array holds no such targets. The message begins with its name.
        """


# ---- classes: texts, whole numbers or one-hot rows ----


class BadLabels(Exception):
    """Labels that can't be used: `reason` is read after their name, `remedy` is the way out."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}: {remedy}")
        self.reason, self.remedy = reason, remedy


class ClassTargets(TargetReader):
    """One class for each example. Those of texts are numbered in the order of the texts.

    Several columns of a table are the classes: each row has a single 1 in that of its class, and 0 in the others.
    """

    def read_columns(self, columns: Mapping[str, Column], locate: Locate) -> Targets:
        if len(columns) > 1:
            return _read_one_hot_columns(columns, locate)
        ((name, column),) = columns.items()
        if pa.types.is_list(column.type) and column.null_count < len(column):
            row = _find_first(column.is_valid())
            raise DataError(
                f"{locate(row)}: column {name} holds a list, and an example has one class: give a column of texts or "
                "numbers, or choose task=multilabel"
            )
        column = as_texts(column)
        names = sorted(column.unique().drop_null().to_pylist())
        numbers = pc.index_in(column, value_set=pa.array(names, pa.string()))
        return Targets(_to_numpy(numbers.fill_null(-1), np.int32), names, len(names))

    def read_arrays(self, arrays: Mapping[str, np.ndarray], names: Sequence[str] = ()) -> dict[str, Targets]:
        texts = {name: array.dtype.kind in "US" for name, array in arrays.items()}
        if len(set(texts.values())) > 1:
            raise DataError(f"{' and '.join(texts)} mix texts and numbers: save all labels as texts, or all as numbers")
        classes: dict[str, np.ndarray] = {}
        for name, array in arrays.items():
            try:
                classes[name] = class_texts(array) if texts[name] else class_numbers(array)
            except BadLabels as bad:
                raise DataError(f"{name} {bad}") from bad
        if any(texts.values()):
            found = np.unique(np.concatenate(list(classes.values())))
            return {
                name: Targets(np.searchsorted(found, values), found.tolist(), len(found))
                for name, values in classes.items()
            }
        columns = [array.shape[1] for array in arrays.values() if array.ndim == 2]
        count = max([*columns, *(int(numbers.max()) + 1 for numbers in classes.values())])
        return {name: Targets(values, [], count) for name, values in classes.items()}


def _read_one_hot_columns(columns: Mapping[str, Column], locate: Locate) -> Targets:
    values = np.stack([_read_words(name, column, locate) for name, column in columns.items()], axis=1)
    empty = np.isnan(values).all(axis=1)
    wrong = ~empty & ~(((values == 1).sum(axis=1) == 1) & ((values == 0).sum(axis=1) == len(columns) - 1))
    if wrong.any():
        row = int(np.argmax(wrong))
        ones = [name for name, value in zip(columns, values[row], strict=True) if value == 1]
        raise DataError(
            f"{locate(row)}: the columns {list_first(list(columns))} are classes, and hold 1 for "
            f"{list_first(ones) or 'none'}: write a single 1 beside zeros, or choose task=multilabel or task=regress"
        )
    return Targets(np.where(empty, -1, (values == 1).argmax(axis=1)).astype(np.int32), list(columns), len(columns))


def class_numbers(labels: np.ndarray) -> np.ndarray:
    """Return the class of each example, int64 [N].

    Args:
        labels: whole numbers of any dtype, [N] or [N, 1], or one-hot rows [N, classes].

    Raises:
        BadLabels: a number is not whole or below 0, or a row has not a single 1 beside zeros.
    """
    if labels.ndim == 2 and labels.shape[1] > 1:
        return _read_one_hot(labels)
    labels = labels.reshape(len(labels))
    if labels.dtype.kind == "f":
        whole = (labels == np.floor(labels)) & (np.abs(labels) < _EXACT)
        if not whole.all():
            raise BadLabels(f"holds {labels[~whole][0]}", "give the classes as whole numbers from 0")
    labels = labels.astype(np.int64)
    if labels.size and labels.min() < 0:
        raise BadLabels(f"holds {labels.min()}", "number the classes from 0")
    return labels


def class_texts(labels: np.ndarray) -> np.ndarray:
    """Return the class of each example as text, str [N], of texts or UTF-8, [N] or [N, 1].

    Texts are in `normal_form`, in which é is one character.

    Raises:
        BadLabels: bytes are no UTF-8, or a text is empty.
    """
    names, indices = np.unique(labels.reshape(len(labels)), return_inverse=True)
    try:
        texts = [name.decode() if isinstance(name, bytes) else str(name) for name in names.tolist()]
    except UnicodeDecodeError as error:
        raise BadLabels(
            "holds bytes that are not UTF-8", "save texts, or the classes as whole numbers from 0"
        ) from error
    if "" in texts:
        raise BadLabels("holds an empty text", "give each image a class")
    return np.array([normal_form(text) for text in texts], str)[indices]


def _read_one_hot(labels: np.ndarray) -> np.ndarray:
    ones = labels == 1
    one_hot = (ones.sum(axis=1) == 1) & (ones | (labels == 0)).all(axis=1)
    if not one_hot.all():
        row = int(np.argmin(one_hot))
        shown = ",".join(f"{value:g}" for value in labels[row, :8].tolist()) + (",..." if labels.shape[1] > 8 else "")
        raise BadLabels(
            f"has the row [{shown}] at {row}",
            "an image has one class here, so give a single 1 beside zeros, or a whole number from 0",
        )
    return ones.argmax(axis=1)


# ---- several labels, or none ----


@dataclass(frozen=True)
class LabelTargets(TargetReader):
    """Labels that an example has (1), has not (0), or of which that is unknown (NaN).

    A table has a column for each label: 1, true or yes; 0, false or no; nothing if it is unknown. Or one column holds
    lists of the labels that each image has: texts with a separator between the labels, or lists of texts. Nothing is
    then none of them. A single column of which all cells are 1, 0 and so on is one label, unless a separator is given.

    Args:
        names: The labels in their order; empty: those that are found.
        separator: What stands between labels in a text; empty: ; or |.
    """

    names: Sequence[str] = ()
    separator: str = ""

    def read_columns(self, columns: Mapping[str, Column], locate: Locate) -> Targets:
        if len(columns) == 1:
            ((name, column),) = columns.items()
            of_texts = pa.types.is_string(column.type)
            if pa.types.is_list(column.type) or (of_texts and (self.separator or not _are_words(column))):
                return self._read_lists(name, column, locate)
        values = [_read_words(name, column, locate) for name, column in columns.items()]
        return _arrange(np.stack(values, axis=1), list(columns), self.names)

    def read_arrays(self, arrays: Mapping[str, np.ndarray], names: Sequence[str] = ()) -> dict[str, Targets]:
        found = _read_number_arrays(arrays, names, self.names)
        for name, targets in found.items():
            wrong = ~np.isin(targets.values, (0, 1)) & ~np.isnan(targets.values)
            if wrong.any():
                row, column = np.argwhere(wrong)[0].tolist()
                raise DataError(
                    f"{name} holds {targets.values[row, column]:g} at {row},{column}: write 1 for an image that has "
                    "the label, 0 for one that has not, and NaN if it is unknown"
                )
        return found

    def _read_lists(self, column_name: str, column: Column, locate: Locate) -> Targets:
        pattern = re.escape(self.separator) or _SEPARATORS
        lists = [_split(chunk, pattern) if pa.types.is_string(chunk.type) else chunk for chunk in column.chunks]
        found = sorted({name for chunk in lists for name in pc.list_flatten(chunk).unique().to_pylist()})
        if len(found) > _MOST:
            raise DataError(
                f"column {column_name} holds {len(found):,} different labels, such as {found[0][:_SHOWN]}: it takes at "
                f"most {_MOST:,}; data.label_column=<name> says which column has the labels"
            )
        names = list(self.names) or found
        values, first = np.zeros([len(column), len(names)], np.float32), 0
        for chunk in lists:
            texts, rows = pc.list_flatten(chunk), first + _to_numpy(pc.list_parent_indices(chunk), np.int64)
            numbers = pc.index_in(texts, value_set=pa.array(names, pa.string()))
            if numbers.null_count:
                at = _find_first(numbers.is_null())
                text = texts[at].as_py()
                raise DataError(f"{locate(int(rows[at]))}: {text} is none of the labels: {suggest_names(text, names)}")
            np.add.at(values, (rows, _to_numpy(numbers, np.int64)), 1)
            first += len(chunk)
        if values.max(initial=0) > 1:
            row, label = np.argwhere(values > 1)[0].tolist()
            raise DataError(
                f"{locate(row)}: column {column_name} names {names[label]} more than once: give the labels that an "
                "image has, each once; for labels of 0 and 1 give a column for each"
            )
        are_numbers = _as_numbers(pa.chunked_array([found], pa.string())) is not None
        if found and are_numbers and values.sum(axis=1).max() == 1:
            raise DataError(
                f"column {column_name} holds a number in each row, such as {found[0]}: choose task=regress, or write "
                "the labels as names"
            )
        none = int(np.sum(~values.any(axis=1)))
        notes = [f"column {column_name} holds lists of labels; {none:,} rows have none"]
        return Targets(values, names, len(names), notes)


def _are_words(column: Column) -> bool:
    """Return whether all texts of a column are words for the value of one label."""
    found = pc.is_in(_drop_unknown(column.unique()), value_set=pa.array([*_WORDS, None], pa.string()))
    return bool(pc.all(found).as_py())


def _split(texts: pa.StringArray, pattern: str) -> pa.ListArray:
    """Return the lists of names that texts hold, with what matches a pattern between them."""
    lists = pc.split_pattern_regex(texts.fill_null(""), pattern)
    names = pc.utf8_trim_whitespace(pc.list_flatten(lists))
    kept = pc.not_equal(names, "")
    counts = np.bincount(_to_numpy(pc.list_parent_indices(lists).filter(kept), np.int64), minlength=len(texts))
    return pa.ListArray.from_arrays(np.append(0, np.cumsum(counts)).astype(np.int32), names.filter(kept))


def _read_words(name: str, column: Column, locate: Locate) -> np.ndarray:
    """Return the values of one label, float32 [N]."""
    if pa.types.is_list(column.type):
        known, found = column.is_valid(), pa.nulls(len(column), pa.float32())
    elif pa.types.is_string(column.type):
        lower = _drop_unknown(column)
        words = pc.index_in(lower, value_set=pa.array(_WORDS, pa.string()))
        known, found = lower.is_valid(), pc.less(words, _FALSE).cast(pa.float32())
    else:
        numbers = column.cast(pa.float64(), safe=False)
        known = pc.invert(numbers.is_null(nan_is_null=True))
        found = pc.if_else(pc.is_in(numbers, value_set=pa.array([0, 1], pa.float64())), numbers, None)
    wrong = pc.and_(known, found.is_null())
    if pc.any(wrong).as_py():
        row = _find_first(wrong)
        raise DataError(
            f"{locate(row)}: column {name} holds {_show(column, row)}: write 1, true or yes for an image that has the "
            "label, 0, false or no for one that has not, and nothing if it is unknown"
        )
    return _to_numpy(found.fill_null(np.nan), np.float32)


# ---- numbers ----


@dataclass(frozen=True)
class NumberTargets(TargetReader):
    """One or more numbers for each example. NaN is unknown: in a table an empty cell, nan or null.

    Args:
        names: Those of the numbers in their order; empty: those that are found.
    """

    names: Sequence[str] = ()

    def read_columns(self, columns: Mapping[str, Column], locate: Locate) -> Targets:
        values = [read_numbers(name, column, locate) for name, column in columns.items()]
        return _arrange(np.stack(values, axis=1), list(columns), self.names)

    def read_arrays(self, arrays: Mapping[str, np.ndarray], names: Sequence[str] = ()) -> dict[str, Targets]:
        return _read_number_arrays(arrays, names, self.names)


def read_numbers(name: str, column: Column, locate: Locate) -> np.ndarray:
    """Return the numbers of a column, float32 [N], NaN where a cell is empty. Raise DataError for what is none."""
    return read_exact_numbers(name, column, locate).astype(np.float32)


def read_exact_numbers(name: str, column: Column, locate: Locate, needed: str = "") -> np.ndarray:
    """Return the numbers of a column, float64 [N] that float32 can hold, NaN where a cell is empty.

    Args:
        needed: What to do if the column has none; empty: a cell may be, too.

    Raises:
        DataError: A cell holds no such number.
    """
    column = _drop_unknown(column) if pa.types.is_string(column.type) else column
    numbers = _as_numbers(column)
    if numbers is None:
        row = next(row for row, value in enumerate(column) if value.is_valid and not _is_number(value))
        text = _show(column, row)
        point = text.replace(",", ".", 1)
        remedy = f"write a point, {point}" if "," in text and _is_number(pa.scalar(point)) else ""
        remedy = remedy or f"write one, or {needed or 'nothing'}"
        raise DataError(f"{locate(row)}: column {name} holds {text}, which is no number: {remedy}")
    values = _to_numpy(numbers.fill_null(np.nan), np.float64)
    with np.errstate(over="ignore"):
        too_large = np.isinf(values.astype(np.float32))
    if too_large.any():
        row = int(np.argmax(too_large))
        raise DataError(
            f"{locate(row)}: column {name} holds {_show(column, row)}, which float32 can't hold: write a number of "
            f"at most 3.4e38, or {'remove the row' if needed else 'leave the cell empty'}"
        )
    return values


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


def _as_numbers(column: Column) -> pa.ChunkedArray | None:
    """Return a column as float64; None if it holds something that is no number."""
    if pa.types.is_list(column.type) or pa.types.is_boolean(column.type):
        return None
    try:
        return column.cast(pa.float64(), safe=False)
    except pa.ArrowInvalid:
        return None


def _is_number(value: pa.Scalar) -> bool:
    return _as_numbers(pa.chunked_array([[value.as_py()]], value.type)) is not None


# ---- columns and arrays of both ----


def _arrange(values: np.ndarray, found: Sequence[str], names: Sequence[str], remedy: str = "") -> Targets:
    """Return the targets of columns [N, T] called `found` in the order of `names`, or as they are without any."""
    remedy = remedy or f"data.label_column={format_value(list(names))}"
    if names and sorted(names) != sorted(found):
        raise DataError(
            f"the targets are {list_first(found)}, and {list_first(names)} are needed: give a column for each of "
            f"these, {remedy}"
        )
    chosen = list(names or found)
    return Targets(values[:, [list(found).index(name) for name in chosen]], chosen, len(chosen))


def _read_number_arrays(
    arrays: Mapping[str, np.ndarray], found: Sequence[str], names: Sequence[str]
) -> dict[str, Targets]:
    """Return the numbers of arrays [N] or [N, T] called `found`, in the order of `names`."""
    values: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise DataError(f"{name} is of type {array.dtype}: save numbers, by .astype('float32')")
        with np.errstate(over="ignore"):
            values[name] = array.reshape(len(array), -1).astype(np.float32)
        if np.isinf(values[name]).any():
            row, column = np.argwhere(np.isinf(values[name]))[0].tolist()
            raise DataError(
                f"{name} holds {array.reshape(len(array), -1)[row, column]} at {row},{column}, which float32 can't "
                "hold: save finite numbers, and NaN for unknown ones"
            )
    counts = {name: array.shape[1] for name, array in values.items()}
    if len(set(counts.values())) > 1:
        raise DataError(f"{' and '.join(counts)} have {' and '.join(map(str, counts.values()))} columns: save as many")
    count = next(iter(counts.values()))
    if found and len(found) != count:
        raise DataError(
            f"{next(iter(counts))} has {count} columns, and there are {len(found)} names: give one for each"
        )
    if len(set(found)) < len(found):
        raise DataError(f"names holds {list_first(found)}: give each column a name of its own")
    columns = list(found) or [str(number) for number in range(count)]
    if names and not found and len(names) == count:  # columns without names are taken in the order of the names
        columns = list(names)
    remedy = "and call it so in names"
    return {name: _arrange(array, columns, names, remedy) for name, array in values.items()}


def _drop_unknown(column: Column) -> Column:
    """Return texts in lower case without those that mean that nothing is known."""
    lower = pc.utf8_lower(column)
    return pc.if_else(pc.is_in(lower, value_set=pa.array(_UNKNOWN)), pa.scalar(None, pa.string()), lower)


def as_texts(column: Column) -> Column:
    """Return numbers, booleans and bytes as texts. A whole number has no point, as a column with gaps holds floats.

    Raises:
        DataError: Bytes are no UTF-8.
    """
    if pa.types.is_floating(column.type):
        column = pc.if_else(column.is_null(nan_is_null=True), None, column)
        whole = pc.all(pc.and_(pc.equal(pc.floor(column), column), pc.less(pc.abs(column), _EXACT))).as_py()
        column = column.cast(pa.int64()) if whole else column
    try:
        return column if pa.types.is_string(column.type) else column.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise DataError("labels hold bytes that are no text in UTF-8: write them as texts") from error


def _find_first(mask: pa.Array | pa.ChunkedArray) -> int:
    """Return the index of the first True."""
    return int(pc.index(mask, True).as_py())


def _show(column: Column, row: int) -> str:
    text = str(column[row].as_py())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _to_numpy(column: pa.Array | pa.ChunkedArray, dtype: type) -> np.ndarray:
    return np.asarray(column.to_numpy(), dtype) if isinstance(column, pa.ChunkedArray) else np.asarray(column, dtype)
