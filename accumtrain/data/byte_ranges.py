"""Pieces of a file by position: pread for local files, which threads may share, else TensorFlow's file systems."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import tensorflow as tf

from accumtrain.errors import first_line


def is_remote(path: str) -> bool:
    return "://" in path


def size_and_time(path: str) -> tuple[int, int]:
    """Size in bytes and time of the last change in nanoseconds. Raises OSError, also for what is no regular file."""
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
        """`length` bytes from `start` on, fewer at the end of the file. Raises OSError."""
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
