"""The image files of each class, and how they are split into those to train on and those to test on."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from accumtrain.data.part import held_out_of
from accumtrain.errors import DataError

_NAMED = 5  # files named in a message


class Image(NamedTuple):
    """An image file, and its name within its class, which is the same wherever the data set lies."""

    name: str
    file: Path


Listing = dict[str, list[Image]]  # the images of each class; names are in `normal_form`


def hold_out(listing: Listing, fraction: float) -> dict[str, Listing]:
    """Splits into train and test. Of a class of n files, round(n * fraction) but at least one are for testing.

    These are the ones whose names have the smallest CRC-32, so the split is the same on every machine and for every
    seed.

    Raises:
        DataError: A class has a single image.
    """
    train, test = Listing(), Listing()
    for kind, images in listing.items():
        if len(images) < 2:
            raise DataError(f"class {kind} has a single image, {images[0].file}: it takes two to train and to test")
        held = held_out_of(len(images), fraction)
        by_hash = sorted(images, key=lambda each: (zlib.crc32(each.name.encode()), each))
        test[kind], train[kind] = sorted(by_hash[:held]), sorted(by_hash[held:])
    return {"train": train, "test": test}


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
