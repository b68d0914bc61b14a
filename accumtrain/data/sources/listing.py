"""The image files of each class, and what messages say of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from accumtrain.errors import DataError

_NAMED = 5  # files named in a message


class Image(NamedTuple):
    """An image file, and its name within its class, which is the same wherever the data set lies."""

    name: str
    file: Path


Listing = dict[str, list[Image]]  # the images of each class; names are in `normal_form`


@contextmanager
def readable() -> Iterator[None]:
    """Within this context a folder that can't be read is a DataError."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{error.filename} can't be read: {error.strerror}; give yourself the permission") from error


def told(files: Sequence[object]) -> str:
    """How many files there are, and the names of the first ones."""
    return f"{counted(files)}: {first_of(files)}"


def counted(files: Sequence[object]) -> str:
    return "1 file" if len(files) == 1 else f"{len(files):,} files"


def first_of(names: Sequence[object]) -> str:
    return ", ".join(map(str, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")
