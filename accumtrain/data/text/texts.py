"""Texts as people store them: a file for each text, or a line for each text.

A text that can't be used is read as the error that says its line and its fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from accumtrain.console import format_bytes
from accumtrain.data.local_files import find_file_fault, is_compressed
from accumtrain.data.source import BadExample, UnreadableExample
from accumtrain.errors import DataError
from accumtrain.process.machine import spare_bytes

TABLES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".pq")
_BOM = b"\xef\xbb\xbf"
_BYTES_IN_MEMORY = 8  # of each byte of a file: the text, and tokens of four bytes


@dataclass(frozen=True)
class Text:
    """A text by its name, with the name of its class; `fault` is why it can't be used. A pair has a second text."""

    name: str
    content: str = ""
    kind: str = ""
    fault: BadExample | None = None
    second: str | None = None


def read_file(file: Path, kind: str = "") -> Text:
    """Return a file as one text. Raise DataError if it does not fit in memory."""
    name = str(file)
    if fault := find_file_fault(file):
        return Text(name, fault=UnreadableExample(name, fault))
    check_memory(file, file.stat().st_size)
    try:
        content = file.read_bytes()
    except OSError as error:
        return Text(name, fault=UnreadableExample(name, f"can't be read: {error.strerror}"))
    if is_compressed(content):
        return Text(name, fault=UnreadableExample(name, "is compressed: unpack it"))
    return replace(_decode(name, content.removeprefix(_BOM)), kind=kind)


def read_lines(file: Path) -> Iterator[Text]:
    """Yield the lines of a file, of which each is a text. Blank lines are none.

    Raises:
        DataError: The file can't be read, or does not fit in memory.
    """
    for name, line in _iterate_lines(file):
        yield _decode(name, line)


def check_is_no_table(file: Path, key: str) -> None:
    """Raise DataError for a file whose lines are no texts by its name.

    Args:
        key: That gives the file, for messages.
    """
    suffix = file.suffix.lower()
    if suffix in TABLES:
        raise DataError(
            f"{key}={file} is a table, whose lines are no texts: give data=table data.path={file} "
            "data.text_column=<name>, or move it away"
        )
    if suffix == ".npz":
        raise DataError(f"{key}={file} is a file of arrays, not of texts: give data=npz data.path={file}")


def check_memory(file: Path, size: int) -> None:
    """Raise DataError if the tokens of the texts of a file, which take `size` bytes, would not fit into the memory."""
    spare = spare_bytes()
    if size * _BYTES_IN_MEMORY > spare:
        raise DataError(
            f"{file} has texts of {format_bytes(size)}, and their tokens take up to "
            f"{format_bytes(size * _BYTES_IN_MEMORY)}; {format_bytes(spare)} of memory are free: give a smaller file"
        )


def _iterate_lines(file: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the lines that are not blank, each with its line in words."""
    check_memory(file, file.stat().st_size)
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                stripped = line.removeprefix(_BOM).strip() if number == 1 else line.strip()
                if stripped:
                    yield f"{file}, line {number}", stripped
    except OSError as error:
        raise DataError(f"{file} can't be read: {error.strerror}; check its permissions") from error


def _decode(name: str, content: bytes) -> Text:
    """Return a text in UTF-8."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        found = f"is not UTF-8: byte 0x{content[error.start]:02x} at {error.start}"
        return Text(name, fault=UnreadableExample(name, found, "save it as UTF-8, or remove it"))
    if "\0" in text:
        found = f"is no text: there is a null character at {text.index(chr(0))}"
        return Text(name, fault=UnreadableExample(name, found, "save it as UTF-8, or remove it"))
    return Text(name, text)
