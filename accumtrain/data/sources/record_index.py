"""Where each record of a TFRecord file starts."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import struct
import tempfile
import threading
from pathlib import Path

import google_crc32c
import numpy as np
import tensorflow as tf

from accumtrain.data.local_files import find_file_fault
from accumtrain.errors import DataError, first_line

# The user's cache folder: what can be made anew at any time lies there.


def user_cache() -> Path | None:
    """The folder of accumtrain in the user's cache folder (XDG base directory specification), which may not exist.

    None for a user without a home, as in some containers.
    """
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(given) if given else Path.home() / ".cache") / "accumtrain"
    except RuntimeError:  # Path.home() finds none
        return None


# The bytes of a record of a TFRecord file: length (8), its checksum (4), payload, the payload's checksum (4).
#
# A checksum is a CRC-32C, rotated right by 15 bits, plus a constant, so that the checksum of data that holds a
# checksum is no special number.


HEADER_BYTES = 12
FOOTER_BYTES = 4


def read_length(header: bytes) -> int | None:
    """The length of the payload after a header; None if the header is cut off or its checksum is wrong."""
    if len(header) != HEADER_BYTES:
        return None
    length, checksum = struct.unpack("<QI", header)
    return length if _checksum(header[:8]) == checksum else None


def read_payload(record: bytes) -> bytes | None:
    """The payload of a whole record; None if a checksum is wrong, or the length."""
    payload = record[HEADER_BYTES:-FOOTER_BYTES]
    if read_length(record[:HEADER_BYTES]) != len(payload):
        return None
    return payload if _checksum(payload).to_bytes(4, "little") == record[-FOOTER_BYTES:] else None


def check_checksum_speed() -> None:
    """Raise DataError if checksums are computed in Python, some 1,000 times slower than by the processor."""
    if google_crc32c.implementation != "c":
        raise DataError(
            "TFRecord files can't be checked at speed: the package google-crc32c is installed without its C extension; "
            "install its wheel, pip install --force-reinstall --only-binary=google-crc32c google-crc32c"
        )


def _checksum(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


# Pieces of a file by position: pread for local files, which threads may share, else TensorFlow's file systems.


def is_remote(path: str) -> bool:
    return "://" in path


def read_size_and_time(path: str) -> tuple[int, int]:
    """Size in bytes and time of the last change in nanoseconds. Raise OSError, also for what is no regular file."""
    if is_remote(path):
        try:
            remote = tf.io.gfile.stat(path)
        except tf.errors.OpError as error:
            raise OSError(0, first_line(error)) from error
        return remote.length, remote.mtime_nsec
    local = Path(path).stat()
    if not stat.S_ISREG(local.st_mode):
        raise OSError(0, "it is no regular file")
    return local.st_size, local.st_mtime_ns


class ByteRanges:
    """An open file. `read` may be called from several threads."""

    def __init__(self, path: str) -> None:
        self._remote = tf.io.gfile.GFile(path, "rb") if is_remote(path) else None
        self._local = -1 if self._remote else os.open(path, os.O_RDONLY)
        self._lock = threading.Lock()

    def read(self, start: int, length: int) -> bytes:
        """`length` bytes from `start` on, fewer at the end of the file. Raise OSError."""
        if self._remote is None:
            return os.pread(self._local, length, start)
        try:
            with self._lock:
                self._remote.seek(start)
                return self._remote.read(length)
        except tf.errors.OpError as error:
            raise OSError(0, first_line(error)) from error

    def close(self) -> None:
        if self._remote is not None:
            self._remote.close()
        else:
            os.close(self._local)

    def __enter__(self) -> ByteRanges:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# Where each record of a TFRecord file starts, found once and kept in an index file.
#
# A TFRecord file is a chain of records (record_format.py). Record k is found only by walking there from the start, so
# this is done once. The index is stored beside the shards, or in the user's cache directory if that is not writable.
# It is renewed for shards whose size or time of change differs, and where the file is damaged: it begins with a hash
# of all that follows.


_GZIP = b"\x1f\x8b"
_HASH_BYTES = hashlib.sha256().digest_size

# Size in bytes and time of change in nanoseconds: a shard with the same stamp has not changed.
Stamp = tuple[int, int]


def index_shards(paths: list[str]) -> list[np.ndarray]:
    """For each shard the byte positions at which its records start, and the end of the file: int64 [records + 1].

    Raises:
        DataError: A shard is missing, truncated, or no TFRecord file.
    """
    stamps = {path: _stamp(path) for path in paths}
    known = _load(stamps)
    index = {path: known[path] if path in known else _walk(path, stamps[path][0]) for path in paths}
    if len(known) < len(index):
        _save(stamps, index)
    return [index[path] for path in paths]


def _stamp(path: str) -> Stamp:
    try:
        return read_size_and_time(path)
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}") from error


def _walk(path: str, size: int) -> np.ndarray:
    try:
        with ByteRanges(path) as file:
            return _starts(file, path, size)
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}") from error


def _starts(file: ByteRanges, path: str, size: int) -> np.ndarray:
    starts = [0]
    while starts[-1] < size:
        at = starts[-1]
        header = file.read(at, HEADER_BYTES)
        if at == 0 and header.startswith(_GZIP):
            raise DataError(f"{path} is compressed: records can only be reached at random uncompressed, use gunzip")
        length = read_length(header)
        if length is None or (end := at + HEADER_BYTES + length + FOOTER_BYTES) > size:
            raise DataError(
                f"{path} is truncated or no TFRecord file: record {len(starts) - 1} at byte {at} "
                + ("has no valid length" if length is None else f"would end at byte {end}, the file at {size}")
                + "; copy or write it again"
            )
        starts.append(end)
    return np.array(starts, np.int64)


def _places(paths: list[str]) -> list[Path]:
    """Where the index of these shards may be stored, the preferred place first."""
    digest = hashlib.sha256("\n".join(paths).encode()).hexdigest()[:16]
    beside = [] if is_remote(paths[0]) else [Path(paths[0]).parent]
    cached = [cache / f"index_{digest}"] if (cache := user_cache()) else []
    return [*(folder / f".accumtrain_index_{digest}" for folder in beside), *cached]


def _load(stamps: dict[str, Stamp]) -> dict[str, np.ndarray]:
    """The entries of shards that have not changed since they were indexed."""
    found: dict[str, np.ndarray] = {}
    for place in _places(list(stamps)):
        content = _undamaged(place)
        if content is None:
            continue
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            pieces = np.split(file["starts"], np.cumsum(file["counts"])[:-1])
            then = file["stamps"].tolist()
        for (path, now), starts, stamp in zip(stamps.items(), pieces, then, strict=True):
            if tuple(stamp) == now and _may_be(starts, size=now[0]):
                found.setdefault(path, starts)
    return found


def _undamaged(place: Path) -> bytes | None:
    """The arrays of an index file; None if it is absent or damaged, as it is only a cache."""
    if find_file_fault(place):
        return None
    try:
        content = place.read_bytes()
    except OSError:
        return None
    stored, content = content[:_HASH_BYTES], content[_HASH_BYTES:]
    return content if hashlib.sha256(content).digest() == stored else None


def _may_be(starts: np.ndarray, size: int) -> bool:
    """Return whether these may be the positions of all records of a file of `size` bytes."""
    return bool(starts[0] == 0 and starts[-1] == size and (np.diff(starts) >= HEADER_BYTES + FOOTER_BYTES).all())


def _save(stamps: dict[str, Stamp], index: dict[str, np.ndarray]) -> None:
    counts = [len(starts) for starts in index.values()]
    arrays = io.BytesIO()
    np.savez(
        arrays,
        stamps=np.array(list(stamps.values()), np.int64),  # [shards, 2]
        counts=np.array(counts, np.int64),  # [shards]
        starts=np.concatenate(list(index.values())),
    )
    content = arrays.getvalue()
    for place in _places(list(stamps)):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=place.parent, prefix=place.name) as folder:
                partial = Path(folder) / place.name  # which others may read, as a temporary file's owner alone may
                partial.write_bytes(hashlib.sha256(content).digest() + content)
                partial.replace(place)
        except OSError:
            continue  # not writable, or another user's in a shared folder: the next place, or no index is kept
        return
