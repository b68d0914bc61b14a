"""The images of the rows of a table: files that they name, or bytes in a column."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from accumtrain.data.config import DataConfig, TableConfig
from accumtrain.data.images.encoded import EncodedSplit, Label
from accumtrain.data.images.header import read_header
from accumtrain.data.local_files import is_image, list_first
from accumtrain.data.table.columns import Part, Rows, iterate_texts
from accumtrain.data.table.image_files import ImageFiles
from accumtrain.data.targets.base import LEAVE_OUT, TargetReader, Targets
from accumtrain.data.targets.cells import CellRules, as_texts, find_first, shorten, to_numpy
from accumtrain.data.targets.lists import find_several
from accumtrain.errors import DataError

_CHANNELS = 3
_FILES_OF_A_FOLDER = 2**40
_SHOWN = 6  # files, one more than a message lists


# ---- the images of rows ----


class Folders(dict[Path, ImageFiles]):
    """The image files of each folder, which are listed once."""

    def __missing__(self, folder: Path) -> ImageFiles:
        self[folder] = ImageFiles(folder)
        return self[folder]


def check_images(rows: Rows, known: np.ndarray) -> None:
    """Raise DataError if one of the rows `known`, int32 [n], lacks an image."""
    missing = np.asarray(rows.inputs[0].is_null().to_numpy())[known]
    if missing.any():
        (name,), table = rows.parts[0].columns.inputs, rows.parts[0].table
        raise DataError(
            f"{rows.locate(int(known[np.argmax(missing)]))}: there is a label, and no image in column "
            f"{table.describe(name)}: write one, or remove the row"
        )


def find_files(
    rows: Rows, names: pa.ChunkedArray, known: np.ndarray, folders: Folders, config: TableConfig
) -> tuple[Path, pa.ChunkedArray, np.ndarray]:
    """Return a folder, the paths from there of the files that are named, texts [N], and the numbers of these files.

    Args:
        names: Those in the rows `known`, int32 [N], which increase.

    Raises:
        DataError: None of the files of a table is there. Or some are not, and may not be left out, and another reading
            of their names finds files.
    """
    own = {part.folder for part in rows.parts}
    folder = own.pop() if len(own) == 1 else Path()
    paths, numbers = list[pa.Array](), list[np.ndarray]()
    ends = [*(part.first for part in rows.parts[1:]), int(known[-1]) + 1]
    for part, end in zip(rows.parts, ends, strict=True):
        begin, end = np.searchsorted(known, (part.first, end)).tolist()
        of_part, files = names.slice(begin, end - begin), folders[part.folder]

        def locate(index: int, begin: int = begin) -> str:
            return rows.locate(int(known[begin + index]))

        relative, found = files.find(of_part, locate)
        absent = files.find_absent(found)
        if len(absent) and config.root is not None:
            relative, found = files.find(_read_anew(of_part, absent, files), locate)
            absent = files.find_absent(found)
        _check_found(part, of_part, files, absent, config)
        if part.folder != folder:
            relative = pc.binary_join_element_wise(f"{part.folder}/", relative, "")
        paths += relative.chunks
        numbers.append(found + list(folders).index(part.folder) * _FILES_OF_A_FOLDER)
    return folder, pa.chunked_array(paths, pa.string()), np.concatenate(numbers)


def _read_anew(names: pa.ChunkedArray, absent: np.ndarray, files: ImageFiles) -> pa.ChunkedArray:
    """Return names with another reading of those at the indices `absent`, int64 [n]: the one that finds most files."""
    texts = names.to_pylist()
    for index, text in zip(absent.tolist(), files.fit(names.take(pa.array(absent)))[0].to_pylist(), strict=True):
        texts[index] = text
    return pa.chunked_array([texts], pa.string())


def _check_found(
    part: Part, names: pa.ChunkedArray, files: ImageFiles, absent: np.ndarray, config: TableConfig
) -> None:
    """Raise DataError for names of images, at the indices `absent`, int64 [n], that are not there."""
    if not len(absent):
        return
    missing = names.take(pa.array(absent))
    hint = files.describe_readings(missing, are_all=len(absent) == len(names))
    (name,) = part.columns.inputs
    named = f"that its column {part.table.describe(name)} names"
    if len(absent) == len(names):
        text = (
            ""
            if any(is_image(Path(each)) for each in missing.slice(0, _SHOWN).to_pylist())
            else (f"; if they are texts, data.text_column={name} says so")
        )
        raise DataError(
            f"{part.table.path}: none of the images {named} is there, such as "
            f"{list_first(missing.slice(0, _SHOWN).to_pylist())}: names are relative to {part.folder}, or those of "
            f"files below it, with or without their ending; {hint or 'data.root=<folder> says where they are'}, and "
            f"data.image_column=<name> which column has them{text}"
        )
    if hint and config.on_error == "raise":
        raise DataError(
            f"{part.table.path}: {len(absent):,} of {len(names):,} images {named} are not there, such as "
            f"{list_first(missing.slice(0, _SHOWN).to_pylist())}: {hint}"
        )


def join_labels(rows: Rows, folders: Folders, config: TableConfig) -> tuple[Rows, np.ndarray]:
    """Return rows with the labels of all rows of the same image in the place of its label.

    A row without a label adds none. Also return of which rows nothing is known, bool [N]: a text says so for an image
    without a label.

    Raises:
        DataError: A row lacks an image or holds several labels, or the labels are in several columns.
    """
    if len(rows.labels) > 1 or rows.hold_images:
        raise DataError(
            f"data.rows=labels: {rows.parts[0].table.path} has "
            f"{'images' if rows.hold_images else f'the labels {list_first(list(rows.labels))}'}: give a column of "
            "names of files, and one of labels"
        )
    every = np.arange(len(rows.inputs[0]), dtype=np.int32)
    check_images(rows, every)
    _, _, numbers = find_files(rows, rows.inputs[0], every, folders, config)
    ((name, column),) = rows.labels.items()
    every_text = as_texts(column)
    texts = CellRules.of(config).drop_missing(every_text)
    _check_single(name, texts, rows)
    by_file: dict[int, dict[str, None]] = {number: {} for number in np.unique(numbers).tolist()}  # each label once
    for number, label in zip(numbers.tolist(), iterate_texts(texts), strict=True):
        if label is not None:
            by_file[number][label] = None
    lists = pa.array([list(by_file[number]) for number in numbers.tolist()], pa.list_(pa.string()))
    of_nothing = set(numbers[to_numpy(pc.and_(every_text.is_valid(), texts.is_null()), bool)].tolist())
    unknown = np.array([number in of_nothing and not by_file[number] for number in numbers.tolist()])
    return replace(rows, labels={name: pa.chunked_array([lists])}), unknown


def _check_single(name: str, texts: pa.ChunkedArray, rows: Rows) -> None:
    """Raise DataError for a row that holds several labels, or may do so."""
    several = find_several(texts.unique().drop_null().to_pylist())
    if several is not None:
        raise DataError(
            f"{rows.locate(find_first(pc.equal(texts, several)))}: column {name} holds {shorten(several)}, and with "
            "data.rows=labels a row has one label: write a row for each, with labels of one word"
        )


def merge_doubled(
    rows: Rows,
    targets: Targets,
    names: pa.ChunkedArray,
    known: np.ndarray,
    numbers: np.ndarray,
    further: Iterable[np.ndarray | None],
    reader: TargetReader | None,
) -> np.ndarray:
    """Return the indices in `known` of the first row of each image.

    Args:
        rows: All of them.
        targets: Those of all rows.
        names: The images of the known rows.
        known: The indices of the rows that have a target, int32 [n].
        numbers: The numbers of the files of these, int64 [n].
        further: What else is told of these, each [n].
        reader: That of the targets.

    Raises:
        DataError: Another row of an image says something else.
    """
    if not (np.diff(np.sort(numbers)) == 0).any():
        return np.arange(len(numbers), dtype=np.int32)
    _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    firsts = first[inverse]
    doubled = np.flatnonzero(firsts != np.arange(len(numbers)))
    again, before = known[doubled], known[firsts[doubled]]
    values = targets.values
    unknown = (values[again] != values[again]) & (values[before] != values[before])
    same_target = (values[again] == values[before]) | unknown
    same_target = same_target if values.ndim == 1 else same_target.all(axis=1)
    same = same_target.copy()
    for told in further:
        if told is not None:
            same &= told[doubled] == told[firsts[doubled]]
    if not same.all():
        at = int(np.argmin(same))
        row, other = int(again[at]), int(before[at])
        raise DataError(
            f"{rows.locate(row)}, gives {names[int(doubled[at])]} {_describe_row(rows, targets, row)}, and "
            f"{rows.locate(other)}, {_describe_row(rows, targets, other)}: an image has one of each; "
            f"{LEAVE_OUT if reader is None or same_target[at] else reader.remedy_of_two_rows}"
        )
    return np.sort(first).astype(np.int32)


def _describe_row(rows: Rows, targets: Targets, row: int) -> str:
    """Return what a row says about its image."""
    told = [f"the label {targets.describe(row)}"]
    if split := rows.part_of(row).split or (rows.splits is not None and rows.splits[row]):
        told.append(f"the split {split}")
    if rows.groups is not None:
        told.append(f"the group {rows.groups[row]}")
    return " and ".join(told)


# ---- images in a column ----


class ColumnSplit(EncodedSplit):
    """Some images of a column, each with a label.

    Args:
        images: Bytes, of all rows.
        rows: Those of the split, integers [size].
        labels: Integers [size], or float32 [size, T].
        locate: From a row to its place in words.
    """

    def __init__(
        self,
        images: pa.ChunkedArray,
        rows: np.ndarray,
        labels: np.ndarray,
        locate: Callable[[int], str],
        config: DataConfig,
    ) -> None:
        super().__init__(len(rows), None, _CHANNELS, config)
        self.known_labels = self._known = labels
        self._images, self._rows, self._locate = images, rows, locate
        with tf.device("CPU"):
            self._labels = tf.constant(labels, tf.float32 if labels.dtype.kind == "f" else tf.int32)

    @property
    def stored_sizes(self) -> np.ndarray:
        """The bytes of each image."""
        return np.asarray(pc.binary_length(self._images).to_numpy())[self._rows]

    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        images = tf.ensure_shape(tf.numpy_function(self._fetch, [index], tf.string), [None])
        return images, tf.gather(self._labels, index)

    def orientation(self, index: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(self._read_orientation, [index], tf.int32), [])

    def read_stored(self, index: int) -> tuple[bytes, Label]:
        return self._read(index), self._known[index]

    def name(self, index: int) -> str:
        return self._locate(int(self._rows[index]))

    def _fetch(self, index: np.ndarray) -> np.ndarray:
        return np.array([self._read(each) for each in self.remember(index).tolist()], object)

    def _read(self, index: int) -> bytes:
        image: bytes = self._images[int(self._rows[index])].as_py()
        return image

    def _read_orientation(self, index: np.ndarray) -> np.ndarray:
        return np.array(read_header(self._read(int(index))).orientation, np.int32)
