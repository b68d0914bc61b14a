"""What keeps a file of the user from being read, found without opening it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from accumtrain.errors import DataError

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".jfif", ".webp", ".bmp")  # of the files in a folder that count as images


def fault_of(file: Path) -> str | None:
    """What is wrong with a file, to be read after its name; None if it can be opened. Reading a FIFO would hang."""
    try:
        found = file.stat()
    except ValueError:  # the \0 in it ends a name for the system
        return "has no name that a file can have"
    except OSError as error:
        return "is a link to a file that is not there" if file.is_symlink() else f"can't be read: {error.strerror}"
    if stat.S_ISDIR(found.st_mode):
        return "is a directory"
    if not stat.S_ISREG(found.st_mode):
        return "is no regular file"
    return None if found.st_size else "is empty"


def size_of_file(file: Path) -> int:
    """In bytes; -1 for a file that is not there."""
    try:
        return os.stat(file).st_size  # noqa: PTH116 - half as long as Path.stat, of millions of files
    except (OSError, ValueError):
        return -1


def check_name(path: Path) -> None:
    """Raises DataError for a name that TensorFlow can't take."""
    encoded = os.fsencode(path)
    shown = encoded.decode(errors="backslashreplace")
    if encoded != shown.encode():
        raise DataError(f"{shown}: its name is not UTF-8: rename it")
