"""Lists of labels in the cells of a column, and the readings that a column of texts leaves open."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from accumtrain.data.config import TableConfig
from accumtrain.data.targets.cells import Column, Locate, find_first, shorten, to_numpy
from accumtrain.errors import DataError
from accumtrain.fields import normal_form

_BY_DEFAULT = "[;|]"  # between the names in a text
_WHOLE = ";"  # a separator that keeps such a text whole
_OTHERS = (",", "/", "+", "&", ":", " ")  # that may stand between names
_WRITTEN = re.compile(r"\[\s*\]|[\[({].*['\",].*[\])}]", re.DOTALL)  # ['a', 'b'], ("a",), [a, b], []
_ADJACENT = re.compile(r"['\"]\s*['\"]")  # 'a' 'b', which Python reads as one text
_UNREADABLE = (ValueError, SyntaxError, RecursionError, MemoryError)


def split_lists(name: str, column: Column, separator: str | None, locate: Locate) -> list[pa.ListArray]:
    """Return the lists of names that a column of texts or of lists holds, in chunks.

    Args:
        name: That of the column, for messages.
        separator: Between the names in a text, or TableConfig.LIST; None: ; or |.

    Raises:
        DataError: The texts can be read in two ways, or a text is no written list.
    """
    if pa.types.is_list(column.type):
        return list(column.chunks)
    if separator == TableConfig.LIST:
        return [_read_written(column, name, locate)]
    lists = [_split(chunk, re.escape(separator or "") or _BY_DEFAULT) for chunk in column.chunks]
    if separator is None:
        found = {text for chunk in lists for text in pc.list_flatten(chunk).unique().to_pylist()}
        if (reading := find_lists(found, whole=False)) is not None:
            text, names, key = reading.text, reading.names, reading.separator
            row = next(row for row, cell in enumerate(column) if cell.is_valid and text in cell.as_py())
            raise DataError(
                f"{locate(row)}: column {name} holds {shorten(text)}, which can be read in two ways: as the labels "
                f"{' and '.join(names)}, by {_give(key)}; or as one label, by {_give(_WHOLE)}"
            )
    return lists


# ---- other readings ----


@dataclass(frozen=True)
class Reading:
    """Another reading of texts.

    Attributes:
        text: One of them.
        names: Those that it holds in this reading.
        separator: The value of data.label_separator for it.
    """

    text: str
    names: Sequence[str]
    separator: str


def find_lists(texts: Iterable[str], *, whole: bool, separators: Sequence[str] = _OTHERS) -> Reading | None:
    """Return the reading of texts as lists of names, if they can be some.

    They can if one is written as a list. They also can if names between separators recur: in another text, or by
    themselves.

    Args:
        whole: All names of such a text must be among the texts by themselves.
    """
    known = sorted(texts)
    for text in known:
        if _WRITTEN.fullmatch(text):
            return Reading(text, _parse(text) or ["its parts"], TableConfig.LIST)
    alone = set(known)
    for separator in separators:
        parts = {text: _part(text, separator) for text in known}
        counts = Counter(name for names in parts.values() for name in set(names))
        for text, names in parts.items():
            recurs = alone.issuperset(names) if whole else any(counts[name] > 1 for name in names)
            if len(names) > 1 and recurs:
                return Reading(text, names, separator)
    return None


def ask_for_lists(name: str, column: Column, texts: Iterable[str], locate: Locate) -> None:
    """Raise DataError if the texts of a column of classes can be lists of labels."""
    reading = find_lists(texts, whole=True, separators=(*";|", *_OTHERS))
    if reading is None:
        return
    row = find_first(pc.equal(column, reading.text))
    key = "" if re.fullmatch(_BY_DEFAULT, reading.separator) else f" {_give(reading.separator)}"
    shown = "a list" if reading.separator == TableConfig.LIST else f"the labels {' and '.join(reading.names)}"
    raise DataError(
        f"{locate(row)}: column {name} holds {shorten(reading.text)}: if this is {shown}, did you mean "
        f"task=multilabel{key}? If it is one class, write it as one word"
    )


def _part(text: str, separator: str) -> list[str]:
    return [name for part in text.split(separator) if (name := part.strip())]


def _give(separator: str) -> str:
    """Return the key of a separator as it is written in a shell."""
    return f"data.label_separator={separator}" if separator.isalpha() else f"\"data.label_separator='{separator}'\""


# ---- reading ----


def _split(texts: pa.StringArray, pattern: str) -> pa.ListArray:
    """Return the lists of names that texts hold, with what matches a pattern between them."""
    lists = pc.split_pattern_regex(texts.fill_null(""), pattern)
    names = pc.utf8_trim_whitespace(pc.list_flatten(lists))
    kept = pc.not_equal(names, "")
    counts = np.bincount(to_numpy(pc.list_parent_indices(lists).filter(kept), np.int64), minlength=len(texts))
    return pa.ListArray.from_arrays(np.append(0, np.cumsum(counts)).astype(np.int32), names.filter(kept))


def _read_written(column: Column, name: str, locate: Locate) -> pa.ListArray:
    """Return the lists that texts are written as. An empty cell is an empty list."""
    lists = list[list[str]]()
    for row, cell in enumerate(column):
        found = _parse(cell.as_py()) if cell.is_valid else []
        if found is None:
            raise DataError(
                f"{locate(row)}: column {name} holds {shorten(cell.as_py())}, which is no list as JSON or Python write "
                "one: write it as ['a', 'b']"
            )
        lists.append(found)
    return pa.array(lists, pa.list_(pa.string()))


def _parse(text: str) -> list[str] | None:
    """Return the names in a written list; None if it is none."""
    readers: list[Callable[[str], Any]] = [json.loads]
    if not _ADJACENT.search(text):
        readers.append(ast.literal_eval)
    for read in readers:
        try:
            values = read(text)
        except _UNREADABLE:
            continue
        if isinstance(values, list | tuple | set) and all(isinstance(value, str | int) for value in values):
            names = [normal_form(str(value).strip()) for value in values]
            return sorted(names) if isinstance(values, set) else [name for name in names if name]
        return None
    plain = re.fullmatch(r"\[([^\[\]'\"]*)\]", text)  # [a, b]
    return None if plain is None else _part(plain[1], ",")
