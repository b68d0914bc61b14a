"""Atomic replacement of files, and disk errors with a remedy for the user."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from accumtrain.errors import CheckpointError


def write_json(path: Path, value: Any) -> None:
    """`write_atomic` of `value` as JSON. Numbers may be NumPy scalars; non-finite ones become null."""
    write_atomic(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


def write_atomic(path: Path, text: str) -> None:
    """Replaces the content of the file `path` as a whole. A file that already holds `text` is not touched.

    Raises:
        CheckpointError: the file can't be written, for example because the disk is full; it is unchanged then.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    with disk_errors(path):
        if path.is_file() and path.read_bytes() == text.encode():
            return
        try:
            with unfinished.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
            sync(path.parent)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise


def open_regular(path: Path, flags: int) -> int:
    """Opens a file like os.open, but no link, device or pipe. A new file has the permissions 0644.

    Raises:
        OSError: it can't be opened, or is no regular file.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return descriptor


def read_text(path: Path) -> str:
    """The content of a text file of a run.

    Raises:
        CheckpointError: it can't be read, is no regular file, or is no text.
    """
    try:
        with open(open_regular(path, os.O_RDONLY), "rb") as file:
            return file.read().decode()
    except OSError as error:
        raise CheckpointError(f"{path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is damaged: it is no text (byte {error.start})") from error


def read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file that `write_json` has written.

    Raises:
        CheckpointError: it can't be read, or holds something else.
    """
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is damaged: {error}; move it away, the job that wrote it writes it anew"
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(
            f"{path} is damaged: it holds no mapping; move it away, the job that wrote it writes it anew"
        )
    return content


def sync(path: Path) -> None:
    """Returns when the file or folder is on the disk. For a folder that means the names in it. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Within this context, an OSError about writing `path` becomes a CheckpointError that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CheckpointError(
                f"no space is left to write {path}; free some, for example old runs beside it, and run the same "
                "command again: it continues from the last checkpoint"
            ) from error
        raise CheckpointError(f"{path} can't be written: {error.strerror}") from error


def plain(value: Any) -> Any:
    """Converts `value` to what JSON can hold. Numbers may be NumPy scalars; non-finite ones become null."""
    match value:
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case float():
            return float(value) if math.isfinite(value) else None
        case str() | int() | None:
            return value
        case _:
            return plain(value.item())
