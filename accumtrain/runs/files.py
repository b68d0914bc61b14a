"""Files that are replaced as a whole, errors of the disk with a remedy, and JSON that is checked where it is read."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import stat
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.fields import convert, shorten

UNFINISHED = re.compile(r"\.([0-9]{1,9})\.(.+)")  # a name, with the process and the name that is to be replaced
ASIDE = ".before"  # ends the name of a folder that is put aside
STALE = 3600.0  # seconds
MOST_BYTES = 2**27  # of a text file of a run
DEEPEST = 50  # lists and mappings within each other, in JSON
LONGEST_NUMBER = 400  # characters of a number in JSON, which are more than any that a float holds has
# Half of a pair that stands for one character, in JSON; those of names of files that are not UTF-8 pass.
_HALF = re.compile(r"(?<!\\)\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD](?:[d-fD-F]|[cC][0-7].).")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)  # a text in JSON

# ---- files ----


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON by `write_atomic`. Numbers may be NumPy scalars; non-finite ones become null."""
    write_atomic(path, json.dumps(to_json_value(value), indent=2, allow_nan=False) + "\n")


def write_atomic(path: Path, text: str) -> None:
    """Replace the content of the file `path` as a whole. A file that already holds `text` is not touched.

    Raises:
        CheckpointError: the file can't be written, for example because the disk is full; it is unchanged then.
    """
    with disk_errors(path):
        if path.is_file() and path.read_bytes() == text.encode():
            return
    with replacing(path) as unfinished, unfinished.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path beside `path`: the file or folder that is made there replaces `path` as a whole in the end.

    After an error or a signal nothing of it is left, and `path` is unchanged. `remove_unfinished` removes the leftovers
    of a killed process.

    Raises:
        CheckpointError: it can't be written.
    """
    unfinished = path.with_name(f".{os.getpid()}.{path.name}")
    with disk_errors(path):
        remove_path(unfinished)
        try:
            yield unfinished
            if unfinished.is_dir() and path.is_dir() and not path.is_symlink():
                _replace_folder(path, unfinished)
            else:
                unfinished.replace(path)
            sync_to_disk(path.parent)
        finally:
            remove_path(unfinished)


def _replace_folder(path: Path, new: Path) -> None:
    """Put `new` in the place of a folder, which a rename alone replaces only if it is empty."""
    before = path.with_name(f"{new.name}{ASIDE}")
    path.rename(before)
    try:
        new.rename(path)
    except BaseException:
        before.rename(path)
        raise
    remove_path(before)


def remove_path(path: Path) -> None:
    """Remove a file, a link or a folder with all in it, if it is there. Raise OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_unfinished(folder: Path) -> None:
    """Remove the leftovers of killed processes, of `replacing`, from a folder.

    One that was changed within STALE seconds may be of a process on another machine, and stays.
    """
    for entry in list_folder(folder):
        match = UNFINISHED.match(entry.name)
        with suppress(OSError):  # gone by now, or another user's
            if match and time.time() - entry.lstat().st_mtime > STALE:
                import psutil  # takes 10 ms, and there is rarely anything

                if not psutil.pid_exists(int(match[1])):
                    _remove_left(entry, match[2])


def _remove_left(entry: Path, name: str) -> None:
    """Remove an unfinished file or folder. One that was put aside for a new one is put back if that is missing."""
    path = entry.with_name(name.removesuffix(ASIDE))
    if name.endswith(ASIDE) and not path.exists():
        entry.rename(path)
    else:
        remove_path(entry)


def open_regular(path: Path, flags: int) -> int:
    """Open a file like os.open, but no link, device or pipe. A new file has the permissions 0644.

    Raises:
        OSError: it can't be opened, or is no regular file.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """Return the content of a text file of a run.

    Raises:
        CheckpointError: it can't be read, is no regular file, is no text, or holds more than `most_bytes`.
    """
    try:
        with open(open_regular(path, os.O_RDONLY), "rb") as file:
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise CheckpointError(f"{path} can't be read: {error.strerror}") from error
    if len(content) > most_bytes:
        raise CheckpointError(f"{path} is damaged: it holds more than {most_bytes:,} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is damaged: it is not text (byte {error.start})") from error


def read_json(path: Path, schema: Any) -> Any:
    """Return the content of a JSON file that `write_json` has written, as the type `schema`.

    Raises:
        CheckpointError: it can't be read, or holds something else. The message names the first mistake.
    """
    text = read_text(path)
    try:
        return parse_json(text, schema)
    except ValueError as error:
        raise CheckpointError(
            f"{path} is damaged: {error}; move it away, and the job that wrote it makes a new one"
        ) from error


def parse_json(text: str, schema: Any = Any) -> Any:
    """Return the value that a JSON text holds, as the type `schema` (see `fields.convert`).

    Raises:
        ValueError: it is no JSON, or none that accumtrain writes: NaN, a key twice, nested more than DEEPEST deep.
    """
    _check_depth(text)
    if "\\" in text and (half := _HALF.search(text)):
        raise ValueError(f"{half[0]} is half a character")
    value = json.loads(
        text, object_pairs_hook=_each_once, parse_constant=_number, parse_float=_number, parse_int=_whole_number
    )
    try:
        return convert(schema, value, "")
    except ConfigError as error:
        raise ValueError(str(error)) from error


def _check_depth(text: str) -> None:
    """Raise ValueError for JSON that is nested too deep, before any of it is built."""
    if text.count("[") + text.count("{") <= DEEPEST:
        return
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", _QUOTED.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} deep")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"it holds the key {shorten(twice)} twice")
    return content


def _number(digits: str) -> float:
    if not math.isfinite(float(digits)):
        raise ValueError(f"{shorten(digits)} is no number that JSON or a float holds")
    return float(digits)


def _whole_number(digits: str) -> int:
    if len(digits) > LONGEST_NUMBER:
        raise ValueError(f"{shorten(digits)} is no number that a float holds")
    return int(digits)


def list_folder(path: Path) -> list[Path]:
    """Return what is in a folder; [] if there is none. Raise CheckpointError if it can't be read."""
    with disk_errors(path):
        return list(path.iterdir()) if path.is_dir() else []


def make_inner_folder(path: Path) -> None:
    """Make a folder within one that is there, if need be.

    Raises:
        CheckpointError: it can't be made, or is a link, which would lead elsewhere.
    """
    if path.is_symlink():
        raise CheckpointError(f"{path} is a link, which may lead out of the run's folder: move the link away")
    with disk_errors(path):
        path.mkdir(exist_ok=True)


def sync_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk. Raise OSError if that fails."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an OSError about writing `path` in this context into a CheckpointError with a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CheckpointError(
                f"no space is left to write {path}; free some, for example old runs beside it, and run the same "
                "command again: it continues from the last checkpoint"
            ) from error
        raise CheckpointError(
            f"{path} can't be written: {error.strerror}; fix that and run the same command again"
        ) from error


def to_json_value(value: Any) -> Any:
    """Convert `value` to what JSON can hold. Numbers may be NumPy scalars; non-finite ones become null."""
    match value:
        case Mapping():
            return {str(key): to_json_value(item) for key, item in value.items()}
        case list() | tuple():
            return [to_json_value(item) for item in value]
        case float():
            return float(value) if math.isfinite(value) else None
        case str() | int() | None:
            return value
        case _:
            return to_json_value(value.item())
