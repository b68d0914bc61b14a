"""Files of the user: what keeps one from being read, how messages list them, and those that predict.input names."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from accumtrain.config.check import check_answers
from accumtrain.config.schema import Config
from accumtrain.console import format_things
from accumtrain.errors import ConfigError, DataError
from accumtrain.runs.names import is_of_runs

# of the files in a folder that count as images
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".jfif", ".webp", ".tif", ".tiff", ".gif", ".bmp")
CSV, JSONL = ".csv", ".jsonl"
# the first bytes of gzip, bzip2, zip and Excel, xz, zstd, 7z
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"PK\x03\x04", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"7z\xbc\xaf")
_LISTED = 5  # files named in a message


# ---- faults ----


def find_file_fault(file: Path) -> str | None:
    """Return what is wrong with a file, to be read after its name; None if it can be opened.

    The file is not opened, because reading a FIFO would hang.
    """
    try:
        found = file.stat()
    except ValueError:  # the \0 in it ends a name for the system
        return "is not a name that a file can have"
    except OSError as error:
        is_link = os.path.islink(file)  # noqa: PTH114 - Path.is_symlink raises for a name that is too long
        return "is a link to a file that is not there" if is_link else f"can't be read: {error.strerror}"
    if stat.S_ISDIR(found.st_mode):
        return "is a directory"
    if not stat.S_ISREG(found.st_mode):
        return "is not a regular file"
    return None if found.st_size else "is empty"


def get_file_size(file: Path) -> int:
    """Return the bytes of a file; -1 if it is not there."""
    try:
        return os.stat(file).st_size  # noqa: PTH116 - half as long as Path.stat, of millions of files
    except (OSError, ValueError):
        return -1


def check_name(path: Path) -> None:
    """Raise DataError for a name that TensorFlow can't take."""
    encoded = os.fsencode(path)
    shown = encoded.decode(errors="backslashreplace")
    if encoded != shown.encode():
        raise DataError(f"{shown}: its name is not UTF-8: rename it")


def check_unpacked(file: Path, key: str) -> None:
    """Raise DataError for a compressed file, by its first bytes, and OSError. `key` gives it, for messages."""
    with file.open("rb") as stream:
        if is_compressed(stream.read(8)):
            raise DataError(f"{key}={file} is compressed: unpack it, or save a table of Excel as CSV, and give that")


def is_compressed(content: bytes) -> bool:
    return content.startswith(_COMPRESSED)


def is_image(file: Path) -> bool:
    return file.suffix.lower() in IMAGE_SUFFIXES


@contextmanager
def readable() -> Iterator[None]:
    """Raise DataError for a folder that can't be read."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{error.filename} can't be read: {error.strerror}; check its permissions") from error


def iterate_visible(folder: Path) -> Iterator[Path]:
    """Yield what is in a folder, but nothing hidden and no folder of runs. Raise OSError."""
    with os.scandir(folder) as entries:
        visible = [entry for entry in entries if not entry.name.startswith(".")]
    for entry in visible:
        path = folder / entry.name
        if entry.is_file(follow_symlinks=False) or not is_of_runs(path):  # millions of files need no second look
            yield path


def walk_files(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and in those within it, by name, but none hidden or of runs. Raise OSError."""

    def refuse(error: OSError) -> None:
        raise error

    for inside, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not (name.startswith(".") or is_of_runs(Path(inside, name))))
        yield from (Path(inside, name) for name in sorted(names) if not name.startswith("."))


# ---- lists of files ----


class Image(NamedTuple):
    """An image file, and its name within its class, which is the same wherever the data set lies."""

    name: str
    file: Path


ImagesByClass = dict[str, list[Image]]  # names are in `normal_form`


def list_files(files: Sequence[object]) -> str:
    """Return the number of files, and the names of the first ones."""
    return f"{count_files(files)}: {list_first(files)}"


def count_files(files: Sequence[object]) -> str:
    return format_things(len(files), "file")


def list_first(names: Sequence[object], most: int = _LISTED) -> str:
    return ", ".join(map(str, names[:most])) + (", ..." if len(names) > most else "")


# ---- predict.input ----


def check_predict(config: Config) -> None:
    """Raise ConfigError for a mistake in the keys of job=predict, and DataError if predict.input is not there."""
    check_answers(config)
    if config.predict.input is None:
        raise ConfigError("predict.input=null: say which images, predict.input=<file, folder or glob>")
    find_paths(config.predict.input)
    output = Path(config.predict.output or "")
    if output.suffix not in ("", CSV, JSONL) and not output.is_dir():
        raise ConfigError(f"predict.output={output}: ends in neither {CSV} nor {JSONL}; name such a file, or a folder")


def list_named_images(text: str, key: str = "predict.input") -> tuple[list[Path], list[Path]]:
    """Return the images that `text` names, each once, and the other files in its folders.

    A file that is named itself, or by a glob, may have any name.

    Args:
        text: a file, a folder or a glob.
        key: what messages call it.

    Raises:
        DataError: there is none, a folder can't be read, or a name is not UTF-8.
    """
    files, others = dict[Path, None](), dict[Path, None]()  # in order
    for path in find_paths(text, key):
        if not path.is_dir():
            files[path] = None
            continue
        with readable():
            for file in walk_files(path):
                (files if is_image(file) else others)[file] = None
    if not files:
        endings = ", ".join(IMAGE_SUFFIXES)
        raise DataError(f"{key}={text}: holds no image; save some as files whose names end in {endings}")
    for file in files:
        check_name(file)
    return list(files), list(others)


def find_paths(text: str, key: str = "predict.input") -> list[Path]:
    """Return the file or folder of that name, or what a glob finds. Raise DataError if there is none."""
    path = Path(text)
    if os.path.lexists(path):
        return [path]
    found = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207
    if not found:
        raise DataError(f"{key}={text}: no such file or folder; give one that is there, or a glob in quotes")
    return [Path(name) for name in found]
