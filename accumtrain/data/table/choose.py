"""The columns of a table that no key names, where its cells leave no choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from accumtrain.data.config import TableConfig
from accumtrain.data.local_files import list_first
from accumtrain.data.table.columns import folder_of_images
from accumtrain.data.table.files import Folders
from accumtrain.data.table.image_files import ImageFiles
from accumtrain.data.table.reader import Table, clean
from accumtrain.data.targets.base import TargetReader
from accumtrain.data.targets.cells import Column, read_words
from accumtrain.data.targets.classes import ClassTargets
from accumtrain.data.targets.labels import LabelTargets
from accumtrain.data.targets.numbers import NumberTargets, read_numbers
from accumtrain.errors import DataError

_FEW = 3  # rows, whose numbers count by chance
_WORDS = 5.0  # of a long text, on average over the first _LOOKED_AT rows
_LOOKED_AT = 10_000
_MOST_VALUES = 100  # of a column of classes

Chosen = tuple[TableConfig, list[str]]


def choose_columns(config: TableConfig, reader: TargetReader | None, folders: Folders, table: Table) -> Chosen:
    """Return the keys with the columns of the examples and of their targets, and a note that says them.

    They are chosen if no key names them, and the cells leave no choice. Otherwise the keys are returned as they are.

    Raises:
        DataError: The table can't be read.
    """
    others = config.image_column is not None or config.number_columns is not None or config.rows == "labels"
    if others or len(set(table.names)) < len(table.names):
        return config, []
    apart = [table.find("", name) for name in (config.split_column, config.group) if name is not None]
    names = [name for name in table.names if name not in apart]
    files = folders[folder_of_images(config, table)]
    return (
        _choose_texts(config, reader, files, table, names)
        or _choose_images(config, reader, files, table, names)
        or (config, [])
    )


def _choose_texts(
    config: TableConfig, reader: TargetReader | None, files: ImageFiles, table: Table, names: Sequence[str]
) -> Chosen | None:
    """Return the keys with the one column of long texts, and with those of their targets; None if there is a choice."""
    asked = config.label_column if isinstance(config.label_column, list) else [config.label_column]
    labels = [table.find("data.label_column", name) for name in asked if name is not None]
    if not labels and reader is not None and set(reader.names) <= set(table.names):
        labels = list(reader.names)
    texts, told = [table.find("data.text_column", name) for name in config.text_columns], list[str]()
    if not texts:
        may_be = [name for name in names if name in table.texts and name not in labels]
        means = {name: mean for name in may_be if (mean := _measure_texts(table, name, files)) is not None}
        if len(means) != 1:
            return None
        texts = [*means]
        told = [f"text column: {texts[0]} (mean {round(means[texts[0]]):,} characters)"]
        config = replace(config, text_column=texts[0])
    others = [name for name in names if name not in texts]
    if not labels and reader is not None and (told or len(others) > 1):
        labels = _find_targets(reader, table, others)
        if not labels:
            return None
        values = f" ({_count_values(table, labels[0]):,} values)" if isinstance(reader, ClassTargets) else ""
        told.append(f"labels: {list_first(labels)}{values}")
        if len(others) > 1:  # the only other column may have another name in another table
            config = replace(config, label_column=labels[0] if len(labels) == 1 else [*labels])
    return config, [f"{table.path}: {'; '.join(told)}"] if told else []


def _find_targets(reader: TargetReader, table: Table, names: Sequence[str]) -> list[str]:
    """Return the columns of the targets, from those that may be; [] if there is a choice."""
    if len(names) == 1:
        return list(names)
    if isinstance(reader, ClassTargets):
        few = [name for name in names if 2 <= _count_values(table, name) <= min(_MOST_VALUES, table.rows // 2)]
        return few if len(few) == 1 else []
    columns = zip(names, table.columns(names), strict=True)
    cells = {name: clean(column, table.describe_fully(name)) for name, column in columns}
    return list(names) if all(_holds_targets(name, column, reader, table) for name, column in cells.items()) else []


def _measure_texts(table: Table, name: str, files: ImageFiles) -> float | None:
    """Return the mean length of the texts of a column; None if they are few, short or names of image files."""
    (stored,) = table.columns([name])
    column = stored.cast(pa.string())
    blanks = pc.mean(pc.count_substring_regex(column.slice(0, _LOOKED_AT), r"\s\S")).as_py()
    if blanks is None or blanks + 1 < _WORDS or pc.count_distinct(column).as_py() <= len(column) // 2:
        return None
    return None if _names_files(column, files) else float(pc.mean(pc.utf8_length(column)).as_py())


def _count_values(table: Table, name: str) -> int:
    """Return the number of different texts, numbers or booleans of a column; 0 of one that holds others."""
    (column,) = table.columns([name])
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    known = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_integer,
        pa.types.is_boolean,
        pa.types.is_floating,
    )
    if not any(test(kind) for test in known):
        return 0
    return int(pc.count_distinct(clean(column, table.describe_fully(name))).as_py())


def _choose_images(
    config: TableConfig, reader: TargetReader | None, files: ImageFiles, table: Table, names: Sequence[str]
) -> Chosen | None:
    """Return the keys with the column that names image files, if all others hold targets; None if it is not so."""
    keys = (config.text_column, config.label_column)
    if not isinstance(reader, LabelTargets | NumberTargets) or len(names) < 3 or any(key is not None for key in keys):
        return None
    stored = table.columns(names)
    columns = {name: clean(column, table.describe_fully(name)) for name, column in zip(names, stored, strict=True)}
    targets = [name for name, column in columns.items() if _holds_targets(name, column, reader, table)]
    others = [name for name in names if name not in targets]
    if len(others) != 1 or not _names_files(columns[others[0]], files):
        return None
    note = f"{table.path}: column {others[0]} names the images, and the targets are {list_first(targets)}"
    return replace(config, image_column=others[0], label_column=[*targets]), [note]


def _holds_targets(name: str, column: Column, reader: TargetReader, table: Table) -> bool:
    """Return whether all cells of a column are targets. Those that count the rows are their numbers."""
    read = read_words if isinstance(reader, LabelTargets) else read_numbers
    try:
        values = read(name, column, table.locate, reader.rules)
    except DataError:
        return False
    return len(values) < _FEW or bool((np.diff(values) != 1).any())


def _names_files(column: Column, files: ImageFiles) -> bool:
    return pa.types.is_string(column.type) and not column.null_count and files.count(column) == len(column)
