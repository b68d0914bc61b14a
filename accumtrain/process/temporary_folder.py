"""A folder for files that are gone after their use."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accumtrain.errors import CheckpointError

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
ROOM = 2**20  # bytes; a disk with more free space is not full
REMEDY = "set TMPDIR to a folder on a disk that has room and may be written"


@contextmanager
def temporary_folder(use: str) -> Iterator[Path]:
    """Yield a new folder, accumtrain-<use>-*, that is removed after this context.

    Raises:
        CheckpointError: it can't be made, or its disk is full.
    """
    try:
        made = tempfile.TemporaryDirectory(prefix=f"accumtrain-{use}-")
    except OSError as error:
        raise CheckpointError(f"no temporary folder can be made: {error.strerror}; {REMEDY}") from error
    with made as name:
        try:
            yield Path(name)
        except OSError as error:
            elsewhere = error.filename is not None and not str(error.filename).startswith(name)
            has_room = error.errno == errno.ENOSPC and shutil.disk_usage(name).free > ROOM
            if error.errno not in FULL_DISK or elsewhere or has_room:
                raise
            raise CheckpointError(f"{name} can't be written: {error.strerror}; {REMEDY}") from error
