"""A class for each example: texts, whole numbers or one-hot rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from accumtrain.data.local_files import list_first
from accumtrain.data.targets.base import LEAVE_OUT, TargetReader, Targets
from accumtrain.data.targets.cells import EXACT, Column, Locate, as_texts, find_first, read_words, to_numpy
from accumtrain.data.targets.lists import WHOLE, ask_for_lists
from accumtrain.errors import DataError
from accumtrain.fields import normal_form


class BadLabels(Exception):
    """Labels that can't be used: `reason` is read after their name, `remedy` is the way out."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}: {remedy}")
        self.reason, self.remedy = reason, remedy


@dataclass(frozen=True)
class ClassTargets(TargetReader):
    """One class for each example. Those of texts are numbered in the order of the texts.

    Several columns of a table are the classes: each row has a single 1 in that of its class, and 0 in the others.
    """

    remedy_of_two_rows: ClassVar[str] = (
        f"if it has both as labels, task=multilabel data.rows=labels joins them; otherwise {LEAVE_OUT}"
    )

    def read_columns(self, columns: Mapping[str, Column], locate: Locate) -> Targets:
        if len(columns) > 1:
            return _read_one_hot_columns(columns, locate, self)
        ((name, column),) = columns.items()
        if pa.types.is_list(column.type) and column.null_count < len(column):
            row = find_first(column.is_valid())
            raise DataError(
                f"{locate(row)}: column {name} holds a list, and an example has one class: give a column of texts or "
                "numbers, or choose task=multilabel"
            )
        texts = self.rules.drop_missing(as_texts(column))
        names = sorted(texts.unique().drop_null().to_pylist())
        if self.rules.separator != WHOLE:
            ask_for_lists(name, texts, names, locate)
        numbers = pc.index_in(texts, value_set=pa.array(names, pa.string()))
        notes = [*self.note_missing(columns), *self.rules.note_signs(name, column)]
        return Targets(to_numpy(numbers.fill_null(-1), np.int32), names, len(names), notes)

    def read_arrays(self, arrays: Mapping[str, np.ndarray], names: Sequence[str] = ()) -> dict[str, Targets]:
        texts = {name: array.dtype.kind in "US" for name, array in arrays.items()}
        if len(set(texts.values())) > 1:
            raise DataError(f"{' and '.join(texts)} mix texts and numbers: save all labels as texts, or all as numbers")
        classes: dict[str, np.ndarray] = {}
        for name, array in arrays.items():
            try:
                classes[name] = class_texts(array) if texts[name] else class_numbers(array)
                if texts[name]:
                    self._check_known(classes[name])
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

    def _check_known(self, texts: np.ndarray) -> None:
        """Raise BadLabels for a text that means that the class is unknown."""
        unknown = np.isin(np.char.lower(texts), self.rules.missing)
        if unknown.any():
            row = int(np.argmax(unknown))
            raise BadLabels(
                f"holds {texts[row]} at {row}", "leave examples of unknown class out, or give this class another name"
            )


def _read_one_hot_columns(columns: Mapping[str, Column], locate: Locate, reader: TargetReader) -> Targets:
    values = np.stack([read_words(name, column, locate, reader.rules) for name, column in columns.items()], axis=1)
    empty = np.isnan(values).all(axis=1)
    wrong = ~empty & ~(((values == 1).sum(axis=1) == 1) & ((values == 0).sum(axis=1) == len(columns) - 1))
    if wrong.any():
        row = int(np.argmax(wrong))
        ones = [name for name, value in zip(columns, values[row], strict=True) if value == 1]
        raise DataError(
            f"{locate(row)}: the columns {list_first(list(columns))} are classes, and hold 1 for "
            f"{list_first(ones) or 'none'}: write a single 1 beside zeros, or choose task=multilabel or task=regress"
        )
    classes = np.where(empty, -1, (values == 1).argmax(axis=1)).astype(np.int32)
    return Targets(classes, list(columns), len(columns), reader.note_missing(columns))


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
        whole = (labels == np.floor(labels)) & (np.abs(labels) < EXACT)
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
