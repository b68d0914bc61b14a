"""Targets of examples, and the way to read them from the columns of a table or from arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from accumtrain.data.local_files import list_first
from accumtrain.data.targets.cells import CellRules, Column, Locate, shorten
from accumtrain.errors import DataError
from accumtrain.fields import format_value


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
        return shorten(self.names[int(value)] if value.ndim == 0 else ",".join(map(str, value.tolist())))


LEAVE_OUT = "leave one of the rows out"


@dataclass(frozen=True)
class TargetReader(ABC):
    """A way to read targets.

    Args:
        names: Those that the labels or numbers must have, in their order; empty: those that are found.
        rules: Of the cells of tables.
    """

    names: Sequence[str] = ()
    rules: CellRules = field(default_factory=CellRules)

    remedy_of_two_rows: ClassVar[str] = LEAVE_OUT  # of an image, which say something else

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

    def note_missing(self, columns: Mapping[str, Column]) -> list[str]:
        """Return notes of the texts that mean that nothing is known."""
        return [note for name, column in columns.items() for note in self.rules.note_missing(name, column)]


# ---- columns of labels and numbers ----


def arrange(
    values: np.ndarray, found: Sequence[str], names: Sequence[str], notes: Sequence[str] = (), remedy: str = ""
) -> Targets:
    """Return the targets of columns [N, T] called `found` in the order of `names`, or as they are without any."""
    remedy = remedy or f"data.label_column={format_value(list(names))}"
    if names and sorted(names) != sorted(found):
        raise DataError(
            f"the targets are {list_first(found)}, and {list_first(names)} are needed: give a column for each of "
            f"these, {remedy}"
        )
    chosen = list(names or found)
    return Targets(values[:, [list(found).index(name) for name in chosen]], chosen, len(chosen), list(notes))


def read_number_arrays(
    arrays: Mapping[str, np.ndarray], found: Sequence[str], names: Sequence[str]
) -> dict[str, Targets]:
    """Return the numbers of arrays [N] or [N, T] called `found`, in the order of `names`.

    Raises:
        DataError: They are no finite numbers, or their columns are not those of the names.
    """
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
    return {name: arrange(array, columns, names, remedy="and call it so in names") for name, array in values.items()}
