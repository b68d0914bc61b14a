"""Traced functions kept between processes, in the user's cache folder, so that a second start need not trace them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
import threading
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError

from accumtrain.console import say
from accumtrain.engine.kept_function import KeptFunction, as_bytes

SUFFIX = ".graph"
MOST_BYTES = 64 * 2**20  # of all files; those of RevNet-104 are 0.3 MB
# From here on Python's objects of a trace take more memory than it is worth to have the trace at hand: 100 MB for the
# micro-step and the commit of RevNet-104, of 1.1 and 1.6 MB.
LARGE_BYTES = 500_000
CHECKSUM_BYTES = hashlib.sha256().digest_size


class GraphCache:
    """The kept functions of one run.

    A file is found by a digest of all that decides what tracing makes, and begins with a checksum of its content.
    Several runs may use the folder at the same time: a file appears as a whole, and the least recently used ones are
    removed when there are too many. A folder that can't be written keeps nothing.

    Args:
        key: all that decides the graphs of the run, as JSON can hold it.
        variables: all that its functions use, in an order that follows from the key.
        folder: where the files lie; it need not exist.
    """

    def __init__(self, key: Mapping[str, Any], variables: Sequence[tf.Variable], folder: Path):
        kinds = [(each.name, each.shape.as_list(), each.dtype.name) for each in variables]
        self._digested = json.dumps({**key, "variables": kinds}, sort_keys=True)
        self._key, self._variables, self._folder = key, variables, folder
        self._writers: list[threading.Thread] = []

    def with_variables(self, others: Sequence[tf.Variable]) -> GraphCache:
        """The cache for functions of this run that use `others`, too."""
        return GraphCache(self._key, [*self._variables, *others], self._folder)

    def find(self, name: str, signature: str) -> KeptFunction | None:
        """The function `name` for arguments of `signature`, or None. A damaged one is removed, and a line says so."""
        path = self._path(name, signature)
        try:
            content = _own_bytes(path)
        except OSError:
            return None  # as at the first start
        try:
            found = KeptFunction(_checked(content), self._variables)
        except (ValueError, KeyError, IndexError, zlib.error, DecodeError) as error:
            say(f"{path} is damaged ({error}): it is made anew")
            _remove(path)
            return None
        _touch(path)
        return found

    def keep(self, name: str, signature: str, concrete: Any) -> KeptFunction | None:
        """Writes a traced function, in another thread. Nothing is written if it uses more than the variables.

        Returns:
            The function as a second start finds it, to take the place of the traced one, if that is large; else None.
        """
        path = self._path(name, signature)
        content = as_bytes(concrete, self._variables, mark=path.stem)
        if content is None:
            return None
        # not an executor, which would hide a bug here until somebody asks for the result
        writer = threading.Thread(target=self._write, args=(path, content))
        self._writers.append(writer)
        writer.start()
        return KeptFunction(content, self._variables) if len(content) >= LARGE_BYTES else None

    def wait(self) -> None:
        """Returns when everything is written."""
        while self._writers:
            self._writers.pop().join()

    def _path(self, name: str, signature: str) -> Path:
        digest = hashlib.sha256(json.dumps([self._digested, name, signature]).encode()).hexdigest()
        return self._folder / f"{digest[:32]}{SUFFIX}"

    def _write(self, path: Path, content: bytes) -> None:
        packed, file = zlib.compress(content, 1), None
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.NamedTemporaryFile(dir=self._folder, suffix=SUFFIX, prefix=".", delete=False) as file:
                file.write(hashlib.sha256(packed).digest() + packed)
            Path(file.name).replace(path)
            _remove_oldest(self._folder)
        except OSError:  # a folder that is full or may not be written: the next start traces again
            if file is not None:
                _remove(Path(file.name))


def _own_bytes(path: Path) -> bytes:
    """The content of a file of this user. Raises OSError, also for a file of someone else, as graphs are programs."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another user", str(path))
        return file.read()


def _checked(content: bytes) -> bytes:
    """The content of a file without its checksum. Raises ValueError if it is damaged."""
    checksum, packed = content[:CHECKSUM_BYTES], content[CHECKSUM_BYTES:]
    if hashlib.sha256(packed).digest() != checksum:
        raise ValueError("its checksum is wrong")
    return zlib.decompress(packed)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # the folder is read-only


def _touch(path: Path) -> None:
    """Notes that a file was used."""
    try:
        os.utime(path)
    except OSError:
        return  # another run has removed it, or the folder is read-only


def _remove_oldest(folder: Path) -> None:
    """Removes the files that were not used for the longest time, until the others fit into MOST_BYTES."""
    found = [(path, path.stat()) for path in folder.glob(f"*{SUFFIX}")]
    total = 0
    for path, facts in sorted(found, key=lambda each: -each[1].st_mtime_ns):
        total += facts.st_size
        if total > MOST_BYTES:
            path.unlink(missing_ok=True)
