"""Atomic replacement of files, and disk errors with a remedy for the user."""

from __future__ import annotations

import errno
import json
import math
import os
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
        if path.exists() and path.read_text() == text:
            return
        try:
            with unfinished.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise


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
