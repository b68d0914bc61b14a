"""Several labels, or none, for each example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from accumtrain.console import format_things
from accumtrain.data.config import TableConfig
from accumtrain.data.targets.base import LEAVE_OUT, TargetReader, Targets, arrange, read_number_arrays
from accumtrain.data.targets.cells import (
    WORDS,
    Column,
    Locate,
    are_words,
    find_first,
    read_words,
    shorten,
    show,
    to_numpy,
)
from accumtrain.data.targets.lists import split_lists
from accumtrain.data.targets.numbers import are_numbers
from accumtrain.errors import DataError
from accumtrain.fields import suggest_names

_MOST = 10_000  # names in lists: more are the words of a text


@dataclass(frozen=True)
class LabelTargets(TargetReader):
    """Labels that an example has (1), has not (0), or of which that is unknown (NaN).

    A table has a column for each label: 1, true or yes; 0, false or no; nothing if it is unknown. Or one column holds
    lists of the labels that each image has: texts with a separator between the labels, written lists, or lists of
    texts. Nothing is then none of them. A single column of which all cells are 1, 0 and so on is one label, unless a
    separator is given.
    """

    remedy_of_two_rows: ClassVar[str] = (
        f"if each row has a label of it, data.rows=labels joins them; otherwise {LEAVE_OUT}"
    )

    def read_columns(self, columns: Mapping[str, Column], locate: Locate) -> Targets:
        if len(columns) == 1:
            ((name, column),) = columns.items()
            of_texts = pa.types.is_string(column.type)
            one_label = of_texts and self.rules.separator is None and are_words(column, self.rules)
            if pa.types.is_list(column.type) or (of_texts and not one_label):
                return self._read_lists(name, column, locate)
        values = [read_words(name, column, locate, self.rules) for name, column in columns.items()]
        return arrange(np.stack(values, axis=1), list(columns), self.names, self.note_missing(columns))

    def read_arrays(self, arrays: Mapping[str, np.ndarray], names: Sequence[str] = ()) -> dict[str, Targets]:
        found = read_number_arrays(arrays, names, self.names)
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
        known = self.rules.drop_missing(column)
        lists = split_lists(column_name, known, self.rules.separator, locate, self.names)
        self._check_known(column_name, lists, locate)
        found = sorted({name for chunk in lists for name in pc.list_flatten(chunk).unique().to_pylist()})
        if len(found) > _MOST:
            raise DataError(
                f"column {column_name} holds {len(found):,} different labels, such as {shorten(found[0])}: it takes "
                f"at most {_MOST:,}; data.label_column=<name> says which column has the labels"
            )
        are_written = not pa.types.is_string(column.type) or self.rules.separator == TableConfig.LIST
        if are_written and set(found) == {"0", "1"} and max(map(_find_longest, lists)) > 1:
            raise DataError(
                f"column {column_name} holds lists of 0 and 1: give a column for each label, or an .npz file with the "
                "labels [N, labels]; if these are names of labels, call them otherwise"
            )
        names = list(self.names) or found
        values = _count_names(lists, names, locate)
        if values.max(initial=0) > 1:
            row, label = np.argwhere(values > 1)[0].tolist()
            raise DataError(
                f"{locate(row)}: column {column_name} names {names[label]} more than once: give the labels that an "
                "image has, each once; for labels of 0 and 1 give a column for each"
            )
        if found and are_numbers(found) and values.sum(axis=1).max() == 1:
            raise DataError(
                f"column {column_name} holds a number in each row, such as {found[0]}: choose task=regress, or write "
                "the labels as names; if it is one label, write 1, 0, or nothing if it is unknown"
            )
        of_texts = pa.types.is_string(column.type)
        if of_texts and self.rules.separator is None and values.sum(axis=1).max(initial=0) == 1:
            self._check_is_no_word(column_name, known, locate)
        none = int(np.sum(~values.any(axis=1)))
        if of_texts:
            unknown = to_numpy(pc.and_(column.is_valid(), known.is_null()), bool)
            values[unknown] = np.nan
            none -= int(unknown.sum())
        notes = [f"column {column_name} holds lists of labels; {format_things(none, 'row has', 'rows have')} none"]
        return Targets(values, names, len(names), [*notes, *self.note_missing({column_name: column})])

    def _check_known(self, column_name: str, lists: Sequence[pa.ListArray], locate: Locate) -> None:
        """Raise DataError for a name in a list that means that nothing is known."""
        first = 0
        for chunk in lists:
            names = pc.list_flatten(chunk)
            missing = self.rules.is_missing(names).fill_null(False)
            if (at := find_first(missing)) >= 0:
                row = first + pc.list_parent_indices(chunk)[at].as_py()
                raise DataError(
                    f"{locate(row)}: column {column_name} holds the label {names[at]}, which means that nothing is "
                    "known: remove it, or set data.missing=[] if it is a label"
                )
            first += len(chunk)

    def _check_is_no_word(self, column_name: str, texts: Column, locate: Locate) -> None:
        """Raise DataError for a text beside words for the value of one label."""
        words = pc.is_in(pc.utf8_lower(texts), value_set=pa.array(WORDS, pa.string()))
        if not pc.any(words).as_py():
            return
        row = find_first(pc.and_(texts.is_valid(), pc.invert(words)))
        raise DataError(
            f"{locate(row)}: column {column_name} holds {show(texts, row)}, and {show(texts, find_first(words))} in "
            "other rows: if it is one label, write 1, 0, or nothing if it is unknown; if these are names of labels, "
            "\"data.label_separator=';'\""
        )


def _find_longest(lists: pa.ListArray) -> int:
    """Return the number of names in the longest list."""
    return pc.max(pc.list_value_length(lists)).as_py() or 0


def _count_names(lists: Sequence[pa.ListArray], names: Sequence[str], locate: Locate) -> np.ndarray:
    """Return how often each row names each label, float32 [N, T]. Raise DataError for another name."""
    values, first = np.zeros([sum(map(len, lists)), len(names)], np.float32), 0
    for chunk in lists:
        texts, rows = pc.list_flatten(chunk), first + to_numpy(pc.list_parent_indices(chunk), np.int64)
        numbers = pc.index_in(texts, value_set=pa.array(names, pa.string()))
        if numbers.null_count:
            at = find_first(numbers.is_null())
            text = texts[at].as_py()
            raise DataError(f"{locate(int(rows[at]))}: {text} is none of the labels: {suggest_names(text, names)}")
        np.add.at(values, (rows, to_numpy(numbers, np.int64)), 1)
        first += len(chunk)
    return values
