"""The images of a table: files, found by their paths from its folder or by their names, or bytes in a column."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
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
from accumtrain.data.local_files import check_name, is_image, walk_files
from accumtrain.errors import DataError
from accumtrain.fields import normal_form

_CHANNELS = 3
_CHUNK = 2**14  # names
_SHOWN = 6  # files, one more than a message lists
_NOWHERE = -1  # in the place of the place of a path


# ---- image files that a table names, by paths or names, with or without ending ----


class PathList(Sequence[Path]):
    """Paths in the memory of their text: those relative to a folder are kept, texts [N]."""

    def __init__(self, folder: Path, relative: pa.StringArray) -> None:
        self._folder, self._relative = folder, relative

    def __len__(self) -> int:
        return len(self._relative)

    def __getitem__(self, place: int) -> Path:  # type: ignore[override]
        return self._folder / self._relative[int(place)].as_py()


class ImageFiles:
    """The image files below a folder, each of which has a number; those outside that a name leads to are counted on.

    Raises:
        OSError: A folder can't be read.
        DataError: A name is not UTF-8.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._paths = make_texts(self._walk())
        self._by_key: dict[Callable[[str], str], _Places] = {}
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
            locate: from a name's place to its place in words.

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
                text if place == _NOWHERE else self._paths[place].as_py()
                for text, place in zip(texts, found.tolist(), strict=True)
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
        first = heapq.nsmallest(_SHOWN, (str(self._folder / self._paths[place].as_py()) for place in unused))
        return len(unused), list(map(Path, first))

    def _find_chunk(self, names: list[str], locate: Callable[[int], str]) -> np.ndarray:
        """Return the places of files, int64 [n]; -1 for those that are not there."""
        found = np.full(len(names), _NOWHERE, np.int64)
        plain = [str(PurePosixPath(name)) for name in names]  # ./a is a
        for key_of in _KEYS:
            rows = np.flatnonzero(found == _NOWHERE).tolist()
            if not rows:
                break
            places = self._list_places(key_of, [plain[row] for row in rows])
            for row, of_name in zip(rows, places, strict=True):
                if len(of_name) > 1:
                    files = sorted(str(self._folder / self._paths[place].as_py()) for place in of_name)
                    raise DataError(
                        f"{locate(row)}: {names[row]} can be {' or '.join(files)}: write its path into the table"
                    )
                found[row] = of_name[0] if of_name else _NOWHERE
        return found

    def _list_places(self, key_of: Callable[[str], str], names: list[str]) -> list[list[int]]:
        """Return the places of the paths that each name is the key of."""
        if key_of not in self._by_key:
            self._by_key[key_of] = _Places(self._paths, key_of)
        return self._by_key[key_of].list_all(names)


class Folders(dict[Path, ImageFiles]):
    """The image files of each folder, which are listed once."""

    def __missing__(self, folder: Path) -> ImageFiles:
        self[folder] = ImageFiles(folder)
        return self[folder]


class _Places:
    """The places of paths by a key of each, in 12 bytes a path: only hashes of the keys are kept."""

    def __init__(self, paths: pa.ChunkedArray, key_of: Callable[[str], str]) -> None:
        self._paths, self._key_of = paths, key_of
        self._hashes = np.fromiter(map(hash, map(key_of, iterate_texts(paths))), np.int64, len(paths))
        self._places = np.argsort(self._hashes).astype(np.int32)
        self._hashes.sort()

    def list_all(self, names: list[str]) -> list[list[int]]:
        """Return the places of the paths that each name is the key of."""
        hashes = np.fromiter(map(hash, names), np.int64, len(names))
        low, high = (np.searchsorted(self._hashes, hashes, side).tolist() for side in ("left", "right"))
        found = [self._places[first:end].tolist() for first, end in zip(low, high, strict=True)]
        return [
            [place for place in places if self._key_of(self._paths[place].as_py()) == name]
            for name, places in zip(names, found, strict=True)
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


def iterate_texts(column: pa.ChunkedArray) -> Iterator[str]:
    """Yield the texts of a column, of which few are in memory together."""
    for chunk in _rechunk(column):
        yield from chunk.to_pylist()


# ---- images in a column ----


class ColumnSplit(EncodedSplit):
    """Some images of a column, each with a label.

    Args:
        images: bytes, of all rows.
        rows: the rows of the split, integers [size].
        labels: integers [size], or float32 [size, T].
        locate: from a row to its place in words.
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
        return np.array([self._read(place) for place in self.remember(index).tolist()], object)

    def _read(self, place: int) -> bytes:
        image: bytes = self._images[int(self._rows[place])].as_py()
        return image

    def _read_orientation(self, index: np.ndarray) -> np.ndarray:
        return np.array(read_header(self._read(int(index))).orientation, np.int32)
