"""The image files below a folder, found by their paths from there or by their names, with or without ending."""

from __future__ import annotations

import errno
import heapq
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice, takewhile
from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from accumtrain.data.local_files import check_name, is_image, walk_files
from accumtrain.data.table.columns import iterate_texts
from accumtrain.errors import DataError
from accumtrain.fields import normal_form

_CHUNK = 2**14  # names
_SHOWN = 6  # files, one more than a message lists
_NOWHERE = -1  # of a file that is not there


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

    def mark_named(self, names: pa.ChunkedArray) -> None:
        """Take the files of names as used."""
        for chunk in _rechunk(names):
            texts = [str(PurePosixPath(name)) for name in chunk.to_pylist() if name is not None]
            for key_of in _KEYS:
                self._used[[index for of_name in self._list_all(key_of, texts) for index in of_name]] = True

    def find_absent(self, numbers: np.ndarray) -> np.ndarray:
        """Return the indices of the files that are not there, int64 [n], among those of numbers, int64 [N]."""
        outside = np.flatnonzero(numbers >= len(self._paths))
        if not len(outside):
            return outside
        is_there = np.array([_is_file(self._folder / path) for path in iterate_texts(self._outside)])
        return outside[~is_there[numbers[outside] - len(self._paths)]]

    def fit(self, names: pa.ChunkedArray) -> tuple[pa.ChunkedArray, int]:
        """Return the reading of names that finds the most files, and how many it finds.

        The readings are the names themselves, with / for \\, and without each of the folders that all begin with.
        """
        readings = [(reading, self.count(reading)) for reading in _read_names(names)]
        return max(readings, key=lambda reading: reading[1])  # the first of them

    def describe_readings(self, names: pa.ChunkedArray, *, are_all: bool) -> str:
        """Return how many files another reading of names finds, and how to have it; empty if there is none.

        Args:
            are_all: There are no other names, so these may begin from another folder.
        """
        of_all, readings = f"of {len(names):,} would be found", list(_read_names(names))
        counts = {self._folder: self.fit(names)[1]}
        if are_all and counts[self._folder] < len(names):
            counts |= {
                root: ImageFiles(root).count(reading) for reading in readings if (root := self._find_root(reading))
            }
        root = max(counts, key=lambda folder: counts[folder])  # the first of them
        if counts[root]:
            return f"{counts[root]:,} {of_all} by data.root={root}"
        for words, change, keys in _ALMOST:
            for reading in readings:
                if count := self.count(make_texts(map(change, iterate_texts(reading))), keys):
                    return f"{count:,} {of_all} {words}: write them as the files are called"
        return ""

    def _find_root(self, names: pa.ChunkedArray) -> Path | None:
        """Return the folder below this one from which the first name leads to a file; None if it is not one folder."""
        end = f"/{PurePosixPath(names[0].as_py())}"
        found = [path for chunk in self._paths.chunks for path in chunk.filter(pc.ends_with(chunk, end)).to_pylist()]
        return self._folder / found[0].removesuffix(end) if len(found) == 1 else None

    def count(self, names: pa.ChunkedArray, keys: Sequence[Callable[[str], str]] | None = None) -> int:
        """Return how many of the names are those of one file below the folder each.

        Args:
            keys: What of a path a name can be; None: what `find` takes.
        """
        count = 0
        for chunk in _rechunk(names):
            texts = [str(PurePosixPath(name)) for name in chunk.to_pylist()]
            found = np.zeros(len(texts), bool)
            for key_of in _KEYS if keys is None else keys:
                found |= [len(of_name) == 1 for of_name in self._list_all(key_of, texts)]
            count += int(found.sum())
        return count

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


def _path_in_any_case(path: str) -> str:
    return normal_form(path).casefold()


def _name_in_any_case(path: str) -> str:
    return _name(path).casefold()


_KEYS = (_path, _path_without_ending, _name, _name_without_ending)  # that a name can be, the first that fits
_ALMOST = (  # what names differ in, the change of names that finds files, and what of a path these then are
    ("in another case of letters", str.casefold, (_path_in_any_case, _name_in_any_case)),
    ("with another ending", _path_without_ending, (_path_without_ending, _name_without_ending)),
)


def _locate_from(locate: Callable[[int], str], first: int, row: int) -> str:
    return locate(first + row)


def _read_names(names: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    """Yield names, then with / for \\, and then without each of the folders that all of them begin with."""
    yield names
    if pc.any(pc.match_substring(names, "\\")).as_py():
        names = pc.replace_substring(names, "\\", "/")
        yield names
    ends = pc.min_max(names).as_py()
    first, last = (ends[end].split("/")[:-1] for end in ("min", "max"))
    for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)):
        names = pc.replace_substring_regex(names, "^[^/]*/", "")
        yield names


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except ValueError:  # the \0 in it ends a name for the system
        return False
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise


def make_texts(texts: Iterator[str]) -> pa.ChunkedArray:
    """Return a column of texts, of which few are in memory as objects."""
    chunks = [pa.array(chunk, pa.string()) for chunk in iter(lambda: list(islice(texts, _CHUNK)), [])]
    return pa.chunked_array(chunks, pa.string())


def _rechunk(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    for chunk in column.chunks:
        for first in range(0, len(chunk), _CHUNK):
            yield chunk.slice(first, _CHUNK)
