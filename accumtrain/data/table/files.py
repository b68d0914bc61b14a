"""The images of a table: files, found by their paths from its folder or by their names, or bytes in a column."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from accumtrain.data.config import DataConfig
from accumtrain.data.images.encoded import EncodedSplit, Label
from accumtrain.data.images.header import read_header
from accumtrain.data.local_files import check_name, is_image, list_first, walk_files
from accumtrain.data.table.columns import Rows, iterate_texts
from accumtrain.data.targets import Targets, as_texts
from accumtrain.errors import DataError
from accumtrain.fields import normal_form

_CHANNELS = 3
_CHUNK = 2**14  # names
_FILES_OF_A_FOLDER = 2**40
_SHOWN = 6  # files, one more than a message lists
_NOWHERE = -1  # of a file that is not there


# ---- image files that a table names, by paths or names, with or without ending ----


class PathList(Sequence[Path]):
    """Paths in the memory of their text: those relative to a folder are kept, texts [N]."""

    def __init__(self, folder: Path, relative: pa.StringArray) -> None:
        self._folder, self._relative = folder, relative

    def __len__(self) -> int:
        return len(self._relative)

    def __getitem__(self, index: int) -> Path:  # type: ignore[override]
        return self._folder / self._relative[int(index)].as_py()


class ImageFiles:
    """The image files below a folder, each of which has a number; those outside that a name leads to are counted on.

    Raises:
        OSError: A folder can't be read.
        DataError: A name is not UTF-8.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._paths = make_texts(self._walk())
        self._by_key: dict[Callable[[str], str], _Index] = {}
        self._used = np.zeros(len(self._paths), bool)
        self._outside = pa.chunked_array([], pa.string())  # paths, each once

    def _walk(self) -> Iterator[str]:
        for file in filter(is_image, walk_files(self._folder)):
            check_name(file)
            yield file.relative_to(self._folder).as_posix()

    def holds(self, name: str) -> bool:
        """Return whether there is a file of that name. Nothing is kept for it, unlike for the names of `find`."""
        plain = str(PurePosixPath(name))
        for chunk in self._paths.chunks:
            alike = chunk.filter(pc.match_substring(pc.utf8_normalize(chunk, "NFC"), plain)).to_pylist()
            if any(key_of(path) == plain for path in alike for key_of in _KEYS):
                return True
        return _is_file(self._folder / name)

    def find(self, names: pa.ChunkedArray, locate: Callable[[int], str]) -> tuple[pa.ChunkedArray, np.ndarray]:
        """Return the files of names: their paths from the folder, texts [N], and their numbers, int64 [N].

        A file that is not below the folder is at the path that its name is, and may not be there.

        Args:
            locate: From a name's index to its place in words.

        Raises:
            DataError: A name can be several files.
        """
        numbers, relative, first = np.empty(len(names), np.int64), list[pa.Array](), 0
        for chunk in _rechunk(names):
            texts = chunk.to_pylist()
            found = self._find_chunk(texts, partial(_locate_from, locate, first))
            self._used[found[found >= 0]] = True
            numbers[first : first + len(texts)] = found
            # one by one, as `take` copies all chunks first
            paths = [
                text if index == _NOWHERE else self._paths[index].as_py()
                for text, index in zip(texts, found.tolist(), strict=True)
            ]
            relative.append(chunk if paths == texts else pa.array(paths, pa.string()))  # most are the names themselves
            first += len(texts)
        missing = np.flatnonzero(numbers < 0)
        if len(missing):
            numbers[missing] = self._number_outside(names.take(pa.array(missing)))
        return pa.chunked_array(relative, pa.string()), numbers

    def _number_outside(self, names: pa.ChunkedArray) -> np.ndarray:
        """Return the numbers, int64 [n], of files that are not below the folder."""
        paths = make_texts(str(PurePosixPath(name)) for name in iterate_texts(names))
        known = pa.chunked_array([*self._outside.chunks, *paths.chunks], pa.string()).unique()
        self._outside = pa.chunked_array([known])
        return len(self._paths) + np.asarray(pc.index_in(paths, value_set=known).to_numpy(), np.int64)

    @property
    def any_was_found(self) -> bool:
        """True if a name was that of a file."""
        return bool(self._used.any()) or any(_is_file(self._folder / path) for path in iterate_texts(self._outside))

    def list_unused(self) -> tuple[int, list[Path]]:
        """Return the number of files below the folder that no name has named, and the first of them."""
        unused = np.flatnonzero(~self._used).tolist()
        first = heapq.nsmallest(_SHOWN, (str(self._folder / self._paths[index].as_py()) for index in unused))
        return len(unused), list(map(Path, first))

    def _find_chunk(self, names: list[str], locate: Callable[[int], str]) -> np.ndarray:
        """Return the indices of files, int64 [n]; -1 for those that are not there."""
        found = np.full(len(names), _NOWHERE, np.int64)
        plain = [str(PurePosixPath(name)) for name in names]  # ./a is a
        for key_of in _KEYS:
            rows = np.flatnonzero(found == _NOWHERE).tolist()
            if not rows:
                break
            indices = self._list_all(key_of, [plain[row] for row in rows])
            for row, of_name in zip(rows, indices, strict=True):
                if len(of_name) > 1:
                    files = sorted(str(self._folder / self._paths[index].as_py()) for index in of_name)
                    raise DataError(
                        f"{locate(row)}: {names[row]} can be {' or '.join(files)}: write its path into the table"
                    )
                found[row] = of_name[0] if of_name else _NOWHERE
        return found

    def _list_all(self, key_of: Callable[[str], str], names: list[str]) -> list[list[int]]:
        """Return the indices of the paths that each name is the key of."""
        if key_of not in self._by_key:
            self._by_key[key_of] = _Index(self._paths, key_of)
        return self._by_key[key_of].list_all(names)


class _Index:
    """The indices of paths by a key of each, in 12 bytes a path: only hashes of the keys are kept."""

    def __init__(self, paths: pa.ChunkedArray, key_of: Callable[[str], str]) -> None:
        self._paths, self._key_of = paths, key_of
        self._hashes = np.fromiter(map(hash, map(key_of, iterate_texts(paths))), np.int64, len(paths))
        self._order = np.argsort(self._hashes).astype(np.int32)
        self._hashes.sort()

    def list_all(self, names: list[str]) -> list[list[int]]:
        """Return the indices of the paths that each name is the key of."""
        hashes = np.fromiter(map(hash, names), np.int64, len(names))
        low, high = (np.searchsorted(self._hashes, hashes, side).tolist() for side in ("left", "right"))
        found = [self._order[first:end].tolist() for first, end in zip(low, high, strict=True)]
        return [
            [index for index in indices if self._key_of(self._paths[index].as_py()) == name]
            for name, indices in zip(names, found, strict=True)
        ]


def _path(path: str) -> str:
    return normal_form(path)


def _path_without_ending(path: str) -> str:
    return normal_form(PurePosixPath(path).with_suffix("").as_posix())


def _name(path: str) -> str:
    return normal_form(path.rpartition("/")[2])


def _name_without_ending(path: str) -> str:
    return normal_form(PurePosixPath(path).stem)


_KEYS = (_path, _path_without_ending, _name, _name_without_ending)  # that a name can be, the first that fits


def _locate_from(locate: Callable[[int], str], first: int, row: int) -> str:
    return locate(first + row)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except ValueError:  # the \0 in it ends a name for the system
        return False


def make_texts(texts: Iterator[str]) -> pa.ChunkedArray:
    """Return a column of texts, of which few are in memory as objects."""
    chunks = [pa.array(chunk, pa.string()) for chunk in iter(lambda: list(islice(texts, _CHUNK)), [])]
    return pa.chunked_array(chunks, pa.string())


def _rechunk(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    for chunk in column.chunks:
        for first in range(0, len(chunk), _CHUNK):
            yield chunk.slice(first, _CHUNK)


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
    rows: Rows, names: pa.ChunkedArray, known: np.ndarray, folders: Folders
) -> tuple[Path, pa.ChunkedArray, np.ndarray]:
    """Return a folder, the paths from there of the files that are named, texts [N], and the numbers of these files.

    Args:
        names: Those in the rows `known`, int32 [N], which increase.
    """
    own = {part.table.folder for part in rows.parts}
    folder = own.pop() if len(own) == 1 else Path()
    paths, numbers = list[pa.Array](), list[np.ndarray]()
    ends = [*(part.first for part in rows.parts[1:]), int(known[-1]) + 1]
    for part, end in zip(rows.parts, ends, strict=True):
        begin, end = np.searchsorted(known, (part.first, end)).tolist()
        of_part, files = names.slice(begin, end - begin), folders[part.table.folder]

        def locate(index: int, begin: int = begin) -> str:
            return rows.locate(int(known[begin + index]))

        relative, found = files.find(of_part, locate)
        if len(of_part) and not files.any_was_found:
            (name,) = part.columns.inputs
            raise DataError(
                f"{part.table.path}: none of the images that its column {part.table.describe(name)} names is there, "
                f"such as {list_first(of_part.slice(0, _SHOWN).to_pylist())}: names are relative to "
                f"{part.table.folder}, or those of files below it, with or without their ending; "
                "data.image_column=<name> says which column has them"
            )
        if part.table.folder != folder:
            relative = pc.binary_join_element_wise(f"{part.table.folder}/", relative, "")
        paths += relative.chunks
        numbers.append(found + list(folders).index(part.table.folder) * _FILES_OF_A_FOLDER)
    return folder, pa.chunked_array(paths, pa.string()), np.concatenate(numbers)


def join_labels(rows: Rows, folders: Folders) -> Rows:
    """Return rows with the labels of all rows of the same image in the place of its label.

    Raises:
        DataError: A row lacks an image, or the labels are in several columns.
    """
    if len(rows.labels) > 1 or rows.hold_images:
        raise DataError(
            f"data.rows=labels: {rows.parts[0].table.path} has "
            f"{'images' if rows.hold_images else f'the labels {list_first(list(rows.labels))}'}: give a column of "
            "names of files, and one of labels"
        )
    every = np.arange(len(rows.inputs[0]), dtype=np.int32)
    check_images(rows, every)
    _, _, numbers = find_files(rows, rows.inputs[0], every, folders)
    ((name, column),) = rows.labels.items()
    by_file: dict[int, dict[str, None]] = {number: {} for number in np.unique(numbers).tolist()}  # each label once
    for number, label in zip(numbers.tolist(), iterate_texts(as_texts(column)), strict=True):
        if label is not None:
            by_file[number][label] = None
    lists = pa.array([list(by_file[number]) for number in numbers.tolist()], pa.list_(pa.string()))
    return replace(rows, labels={name: pa.chunked_array([lists])})


def merge_doubled(
    rows: Rows,
    targets: Targets,
    names: pa.ChunkedArray,
    known: np.ndarray,
    numbers: np.ndarray,
    further: Iterable[np.ndarray | None],
) -> np.ndarray:
    """Return the indices in `known` of the first row of each image.

    Args:
        rows: All of them.
        targets: Those of all rows.
        names: The images of the known rows.
        known: The indices of the rows that have a target, int32 [n].
        numbers: The numbers of the files of these, int64 [n].
        further: What else is told of these, each [n].

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
    same = (values[again] == values[before]) | ((values[again] != values[again]) & (values[before] != values[before]))
    same = same if values.ndim == 1 else same.all(axis=1)
    for told in further:
        if told is not None:
            same &= told[doubled] == told[firsts[doubled]]
    if not same.all():
        at = int(np.argmin(same))
        row, other = int(again[at]), int(before[at])
        raise DataError(
            f"{rows.locate(row)}, gives {names[int(doubled[at])]} {_describe_row(rows, targets, row)}, and "
            f"{rows.locate(other)}, {_describe_row(rows, targets, other)}: an image has one of each; leave one of the "
            "rows out"
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
