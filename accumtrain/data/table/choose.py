"""The columns of a table that no key names, where its cells leave no choice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from accumtrain.data.config import TableConfig
from accumtrain.data.local_files import list_first
from accumtrain.data.table.columns import folder_of_images, open_all
from accumtrain.data.table.files import Folders
from accumtrain.data.table.image_files import ImageFiles
from accumtrain.data.table.reader import Table, clean
from accumtrain.data.targets.base import TargetReader
from accumtrain.data.targets.cells import Column, read_words
from accumtrain.data.targets.labels import LabelTargets
from accumtrain.data.targets.numbers import NumberTargets, read_numbers
from accumtrain.errors import DataError

_FEW = 3  # rows, whose numbers count by chance


def choose_columns(config: TableConfig, reader: TargetReader | None, folders: Folders) -> tuple[TableConfig, list[str]]:
    """Return the keys with the columns of the images and of their labels or numbers, and a note that says them.

    They are chosen if no key names them, all columns but one hold targets, and all cells of that one name image files.
    Otherwise the keys are returned as they are.

    Raises:
        DataError: A table can't be read.
    """
    keys = (config.image_column, config.label_column, config.text_column, config.number_columns)
    if not isinstance(reader, LabelTargets | NumberTargets) or any(key is not None for key in keys):
        return config, []
    _, table = open_all(config)[0]
    apart = [table.find("", name) for name in (config.split_column, config.group) if name is not None]
    names = [name for name in table.names if name not in apart]
    if len(names) < 3 or len(set(table.names)) < len(table.names):
        return config, []
    stored = table.columns(names)
    columns = {name: clean(column, table.describe_fully(name)) for name, column in zip(names, stored, strict=True)}
    targets = [name for name, column in columns.items() if _holds_targets(name, column, reader, table)]
    others = [name for name in names if name not in targets]
    if len(others) != 1 or not _names_files(columns[others[0]], folders[folder_of_images(config, table)]):
        return config, []
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
