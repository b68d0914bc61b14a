"""Lists of labels in the cells of a column, and the readings that a column of texts leaves open."""

from __future__ import annotations

import ast
import json
import re
import unicodedata
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
WHOLE = ";"  # a separator that keeps such a text whole
_OTHERS = (",", "/", "+", "&", ":", " ")  # that may stand between names; a blank is white space of any kind
_IN_LISTS = (";", "|", ",")  # that stand in few names
_IN_NAMES = frozenset("_-.'\"()[]{}\\`$!")  # that join the parts of names, or mean something to a shell
_WRITTEN = re.compile(
    r"\[[\s\d.]*\]"  # [1 2], []
    r"|[\[({].*['\",].*[\])}]"  # ['a', 'b'], ("a",), [a, b]
    r"|[\w.]+\(\s*[\[({].*\)"  # array(['a', 'b'])
    r"|(['\"]).*\1\s*[,;|]\s*\1.*"  # 'a', 'b'
    r"|'[^']*'|\"[^\"]*\"",  # 'a'
    re.DOTALL,
)
_PLAIN = re.compile(r"\[([^\[\]'\"]*)\]|\(([^()'\"]*)\)|{([^{}'\":]*)}|set\(\)")  # [a, b], (a, b), {a, b}, [1 2]
_QUOTED = r"(?:'[^']*'|\"[^\"]*\")"
_OF_NUMPY = re.compile(rf"\[\s*{_QUOTED}(?:\s+{_QUOTED})+\s*\]")  # ['a' 'b'], which Python reads as one text
_ADJACENT = re.compile(r"['\"]\s*['\"]")
_AS_LIST = "write it as ['a', 'b']"
_UNREADABLE = (ValueError, SyntaxError, RecursionError, MemoryError)


def split_lists(
    name: str, column: Column, separator: str | None, locate: Locate, known: Sequence[str] = ()
) -> list[pa.ListArray]:
    """Return the lists of names that a column of texts or of lists holds, in chunks.

    Args:
        name: That of the column, for messages.
        separator: Between the names in a text, or TableConfig.LIST; None: ; or |.
        known: The labels of a run; empty: those of the column are new, and the separator stands in it.

    Raises:
        DataError: The texts can be read in two ways, or a text is no written list.
    """
    if pa.types.is_list(column.type):
        return list(column.chunks)
    if separator == TableConfig.LIST:
        return [_read_written(column, name, locate)]
    if (
        separator not in (None, WHOLE)
        and not known
        and not pc.any(pc.match_substring_regex(column, _match(separator))).as_py()
    ):
        raise DataError(
            f"column {name} holds no text with {_give(separator)}: give the sign that stands between its labels, or "
            f"{_give(WHOLE)} if each text is one label"
        )
    lists = [_split(chunk, _match(separator)) for chunk in column.chunks]
    if separator is None:
        found = {text for chunk in lists for text in pc.list_flatten(chunk).unique().to_pylist()}
        if (reading := find_lists(found, whole=False)) is not None:
            text, names, key = reading.text, reading.names, reading.separator
            row = next(row for row, cell in enumerate(column) if cell.is_valid and text in cell.as_py())
            if names is None:
                raise _no_list(name, text, locate(row))
            raise DataError(
                f"{locate(row)}: column {name} holds {shorten(text)}, which can be read in two ways: as the labels "
                f"{' and '.join(names)}, by {_give(key)}; or as one label, by {_give(WHOLE)}"
            )
    return lists


# ---- other readings ----


@dataclass(frozen=True)
class Reading:
    """Another reading of texts.

    Attributes:
        text: One of them.
        names: Those that it holds in this reading; None if it looks like a written list, and is none.
        separator: The value of data.label_separator for it.
    """

    text: str
    names: Sequence[str] | None
    separator: str


def find_lists(texts: Iterable[str], *, whole: bool) -> Reading | None:
    """Return the reading of texts as lists of names, if they can be some.

    They can if one is written as a list, or if the names between separators are also texts by themselves. They also
    can if some of these names are in another text.

    Args:
        whole: All names of such a text must be in another one, and the separator one that stands in few names.
    """
    known = sorted(texts)
    for text in known:
        if _WRITTEN.fullmatch(text):
            return Reading(text, _parse(text), TableConfig.LIST)
    by_themselves = _find_parted(known, (*_IN_LISTS, *_OTHERS, *_find_signs(known)), all, alone=True)
    return by_themselves or _find_parted(known, _IN_LISTS if whole else _OTHERS, all if whole else any, alone=False)


def find_several(texts: Sequence[str]) -> str | None:
    """Return one of some texts that holds several names, or may do so; None if each is one name."""
    reading = find_lists(texts, whole=True)
    return reading.text if reading else next(filter(re.compile(_BY_DEFAULT).search, texts), None)


def _find_parted(
    texts: Sequence[str], separators: Iterable[str], can_be: Callable[[Iterable[bool]], bool], *, alone: bool
) -> Reading | None:
    """Return the reading of texts by the first of the separators between names of which all or any recur.

    Args:
        alone: Names recur only by themselves.
    """
    for separator in separators:
        parts = {text: _part(text, separator) for text in texts}
        counts = Counter(name for names in parts.values() if len(names) == 1 or not alone for name in set(names))
        for text, names in parts.items():
            if len(names) > 1 and can_be(counts[name] > (not alone) for name in names):
                return Reading(text, names, separator)
    return None


def _find_signs(texts: Sequence[str]) -> list[str]:
    """Return the other signs in texts that may part names, such as # or a comma of Chinese."""
    characters = {character for text in texts for character in text} - _IN_NAMES - {*_IN_LISTS, *_OTHERS}
    return sorted(character for character in characters if unicodedata.category(character)[0] in "PS")


def ask_for_lists(name: str, column: Column, texts: Iterable[str], locate: Locate) -> None:
    """Raise DataError if the texts of a column of classes can be lists of labels."""
    reading = find_lists(texts, whole=True)
    if reading is None:
        return
    row = find_first(pc.equal(column, reading.text))
    key = "" if re.fullmatch(_BY_DEFAULT, reading.separator) else f" {_give(reading.separator)}"
    shown = "a list" if reading.separator == TableConfig.LIST else f"the labels {' and '.join(reading.names or ())}"
    raise DataError(
        f"{locate(row)}: column {name} holds {shorten(reading.text)}: if this is {shown}, did you mean "
        f"task=multilabel{key}{'' if reading.names else f', and {_AS_LIST}'}? If it is one class, {_give(WHOLE)} says "
        "so"
    )


def _part(text: str, separator: str) -> list[str]:
    parts = text.split() if separator.isspace() else text.split(separator)
    return [name for part in parts if (name := part.strip())]


def _match(separator: str | None) -> str:
    """Return the pattern of a separator between names."""
    if separator is None:
        return _BY_DEFAULT
    return r"\s+" if separator == " " else re.escape(separator)


def _no_list(name: str, text: str, place: str) -> DataError:
    return DataError(
        f"{place}: column {name} holds {shorten(text)}, which is no list as JSON or Python write one: {_AS_LIST}"
    )


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
            raise _no_list(name, cell.as_py(), locate(row))
        lists.append(found)
    return pa.array(lists, pa.list_(pa.string()))


def _parse(text: str) -> list[str] | None:
    """Return the names in a written list; None if it is none."""
    if plain := _PLAIN.fullmatch(text):
        inside = next(filter(None, plain.groups()), "")
        return _part(inside, " " if re.fullmatch(r"[\d.\s]*", inside) else ",")
    if _OF_NUMPY.fullmatch(text):
        return [normal_form(quoted[1:-1].strip()) for quoted in re.findall(_QUOTED, text)]
    readers: list[Callable[[str], Any]] = [json.loads]
    if not _ADJACENT.search(text):
        readers.append(ast.literal_eval)
    for read in readers:
        try:
            values = read(text)
        except _UNREADABLE:
            continue
        if isinstance(values, list | tuple | set) and all(type(value) in (str, int) for value in values):
            names = [normal_form(str(value).strip()) for value in values]
            return sorted(names) if isinstance(values, set) else [name for name in names if name]
        return None
    return None
