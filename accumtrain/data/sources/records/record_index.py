"""The start of each record of a TFRecord file, found once and kept in an index file.

A TFRecord file is a chain of records. Record k is found only by walking there from the start, so this is done once. The
index is stored beside the shards, or in the user's cache folder if that is not writable. It is renewed for shards whose
size or time of change differs, and if it is damaged: it begins with a hash of its content.
"""

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
from accumtrain.data.sources.npz_file import UNREADABLE
from accumtrain.errors import DataError, first_line

# A record: length (8 bytes), its checksum (4), payload, the payload's checksum (4).
_HEADER_BYTES = 12
_FOOTER_BYTES = 4
_GZIP = b"\x1f\x8b"
_HASH_BYTES = hashlib.sha256().digest_size

# Size in bytes and time of change in nanoseconds. A shard with the same stamp has not changed.
Stamp = tuple[int, int]


def index_shards(paths: list[str]) -> list[np.ndarray]:
    """Return for each shard the byte positions of its records, and of the end of the file: int64 [records + 1].

    Raises:
        DataError: A shard is missing, truncated, or no TFRecord file.
    """
    stamps = {path: _read_stamp(path) for path in paths}
    known = _load(stamps)
    index = {path: known[path] if path in known else _find_starts(path, stamps[path][0]) for path in paths}
    if len(known) < len(index):
        _save(stamps, index)
    return [index[path] for path in paths]


def _read_stamp(path: str) -> Stamp:
    try:
        if is_remote(path):
            remote = tf.io.gfile.stat(path)
            return remote.length, remote.mtime_nsec
        local = Path(path).stat()
        if not stat.S_ISREG(local.st_mode):
            raise OSError(0, "it is not a regular file")
        return local.st_size, local.st_mtime_ns
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}") from error
    except tf.errors.OpError as error:
        raise DataError(f"{path} can't be read: {first_line(error)}") from error


def _find_starts(path: str, size: int) -> np.ndarray:
    try:
        with ByteRanges(path) as file:
            return _walk(file, path, size)
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}") from error


def _walk(file: ByteRanges, path: str, size: int) -> np.ndarray:
    starts = [0]
    while starts[-1] < size:
        at = starts[-1]
        header = file.read(at, _HEADER_BYTES)
        if at == 0 and header.startswith(_GZIP):
            raise DataError(f"{path} is compressed, and records are read in random order: unpack it with gunzip")
        length = read_length(header)
        if length is None or (end := at + _HEADER_BYTES + length + _FOOTER_BYTES) > size:
            raise DataError(
                f"{path} is truncated or not a TFRecord file: record {len(starts) - 1} at byte {at} "
                + ("has no valid length" if length is None else f"would end at byte {end}, the file at {size}")
                + "; copy or write it again"
            )
        starts.append(end)
    return np.array(starts, np.int64)


def _list_index_files(paths: list[str]) -> list[Path]:
    """Return the files in which the index of these shards may be stored, the preferred one first."""
    digest = hashlib.sha256("\n".join(paths).encode()).hexdigest()[:16]
    cached = [cache / f"index_{digest}"] if (cache := find_user_cache()) else []
    return cached if is_remote(paths[0]) else [Path(paths[0]).with_name(f".accumtrain_index_{digest}"), *cached]


def _load(stamps: dict[str, Stamp]) -> dict[str, np.ndarray]:
    """Return the entries of shards that have not changed since they were indexed."""
    found: dict[str, np.ndarray] = {}
    for file in _list_index_files(list(stamps)):
        content = _read_undamaged(file)
        if content is None:
            continue
        for (path, now), stamp, starts in zip(stamps.items(), *_unpack(content, len(stamps)), strict=True):
            if tuple(stamp) == now and _may_be(starts, size=now[0]):
                found.setdefault(path, starts)
    return found


def _unpack(content: bytes, shards: int) -> tuple[list[list[int]], list[np.ndarray]]:
    """Return stamps and starts of each shard. Starts are empty if the arrays are not those of an index of so many."""
    nothing = [[0, 0]] * shards, [np.zeros(0, np.int64)] * shards
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            if sum(info.file_size for info in arrays.zip.infolist()) > len(content):  # packed, as none is here
                return nothing
            stamps, counts, starts = (arrays[name] for name in ("stamps", "counts", "starts"))
    except (*UNREADABLE, LookupError, AttributeError):  # an .npy has no `zip`
        return nothing
    types, shapes = {array.dtype for array in (stamps, counts, starts)}, (stamps.shape, counts.shape, starts.ndim)
    if types != {np.dtype(np.int64)} or shapes != ((shards, 2), (shards,), 1) or counts.sum() != len(starts):
        return nothing
    return stamps.tolist(), np.split(starts, np.cumsum(counts)[:-1])


def _read_undamaged(file: Path) -> bytes | None:
    """Return the arrays of an index file; None if it is absent or damaged, because it is only a cache."""
    if find_file_fault(file):
        return None
    try:
        content = file.read_bytes()
    except OSError:
        return None
    stored, content = content[:_HASH_BYTES], content[_HASH_BYTES:]
    return content if hashlib.sha256(content).digest() == stored else None


def _may_be(starts: np.ndarray, size: int) -> bool:
    """Return whether these may be the positions of all records of a file of `size` bytes."""
    return bool(
        len(starts)
        and starts[0] == 0
        and starts[-1] == size
        and (np.diff(starts) >= _HEADER_BYTES + _FOOTER_BYTES).all()
    )


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
    for file in _list_index_files(list(stamps)):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=file.parent, prefix=file.name) as folder:
                partial = Path(folder) / file.name  # which others may read; a temporary file only its owner may
                partial.write_bytes(hashlib.sha256(content).digest() + content)
                partial.replace(file)
        except OSError:
            continue  # not writable, or another user's in a shared folder: the next place, or no index is kept
        return


def find_user_cache() -> Path | None:
    """Return the folder of accumtrain in the user's cache folder (XDG base directory specification), or None.

    It holds what can be made anew, and may not exist. A user without a home, as in some containers, has none.
    """
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(given) if given else Path.home() / ".cache") / "accumtrain"
    except RuntimeError:  # Path.home() finds none
        return None


# ---- records ----


def read_length(header: bytes) -> int | None:
    """Return the length of the payload after a header; None if the header is cut off or its checksum is wrong."""
    if len(header) != _HEADER_BYTES:
        return None
    length, checksum = struct.unpack("<QI", header)
    return length if _checksum(header[:8]) == checksum else None


def read_payload(record: bytes) -> bytes | None:
    """Return the payload of a whole record; None if a checksum is wrong, or the length."""
    payload = record[_HEADER_BYTES:-_FOOTER_BYTES]
    if read_length(record[:_HEADER_BYTES]) != len(payload):
        return None
    return payload if _checksum(payload).to_bytes(4, "little") == record[-_FOOTER_BYTES:] else None


def check_checksum_speed() -> None:
    """Raise DataError if checksums are computed in Python, some 1,000 times slower than by the processor."""
    if google_crc32c.implementation != "c":
        raise DataError(
            "TFRecord files can't be checked at speed: the package google-crc32c is installed without its C extension; "
            "install its wheel, pip install --force-reinstall --only-binary=google-crc32c google-crc32c"
        )


def _checksum(data: bytes) -> int:
    """Return the CRC-32C, rotated right by 15 bits, plus a constant.

    So the checksum of data that holds a checksum is no special number.
    """
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


# ---- pieces of a file by position ----


def is_remote(path: str) -> bool:
    return "://" in path


class ByteRanges:
    """An open file: read by pread if it is local, else by TensorFlow's file systems. Threads may share it."""

    def __init__(self, path: str) -> None:
        self._remote = tf.io.gfile.GFile(path, "rb") if is_remote(path) else None
        self._local = -1 if self._remote else os.open(path, os.O_RDONLY)
        self._lock = threading.Lock()

    def read(self, start: int, length: int) -> bytes:
        """Return `length` bytes from `start` on, fewer at the end of the file. Raise OSError."""
        if self._remote is None:
            return os.pread(self._local, length, start)
        try:
            with self._lock:
                self._remote.seek(start)
                return self._remote.read(length)
        except tf.errors.OpError as error:
            raise OSError(0, first_line(error)) from error

    def __enter__(self) -> ByteRanges:
        return self

    def __exit__(self, *_: object) -> None:
        if self._remote is not None:
            self._remote.close()
        else:
            os.close(self._local)
