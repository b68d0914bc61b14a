"""Texts as people store them: a file for each text, a line for each text, or a JSON object a line.

A text that can't be used is read as the error that says its place and its fault.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accumtrain.console import format_bytes
from accumtrain.data.local_files import find_file_fault
from accumtrain.data.source import BadExample, UnreadableExample
from accumtrain.errors import DataError
from accumtrain.fields import normal_form
from accumtrain.process.machine import free_bytes

JSON_LINES = (".jsonl", ".ndjson")
_TABLES = (".json", ".csv", ".tsv")  # whose lines are no texts
_BOM = b"\xef\xbb\xbf"
_BYTES_IN_MEMORY = 8  # of each byte of a file: the text, and tokens of four bytes
_SHOWN = 40  # characters of a value in a message


@dataclass(frozen=True)
class Text:
    """A text by its name, with the name of its class; `fault` is why it can't be used."""

    name: str
    content: str = ""
    kind: str = ""
    fault: BadExample | None = None


def read_file(file: Path, kind: str = "") -> Text:
    """Return a file as one text. Raise DataError if it does not fit in memory."""
    name = str(file)
    if fault := find_file_fault(file):
        return Text(name, fault=UnreadableExample(name, fault))
    check_memory(file)
    try:
        content = file.read_bytes()
    except OSError as error:
        return Text(name, fault=UnreadableExample(name, f"can't be read: {error.strerror}"))
    return replace(_decode(name, content.removeprefix(_BOM)), kind=kind)


def read_lines(file: Path) -> Iterator[Text]:
    """Yield the lines of a file, of which each is a text. Blank lines are none.

    Raises:
        DataError: The file can't be read, or does not fit in memory.
    """
    for name, line in _iterate_lines(file):
        yield _decode(name, line)


def read_json_lines(file: Path, text_key: str, label_key: str | None = None) -> Iterator[Text]:
    """Yield the texts of JSON objects, one a line.

    Args:
        text_key: the key of the text in an object.
        label_key: that of its class; None reads none.

    Raises:
        DataError: The file can't be read, or does not fit in memory.
    """
    for name, line in _iterate_lines(file):
        text = _decode(name, line)
        yield text if text.fault else _parse(name, text.content, text_key, label_key)


def check_lines(file: Path) -> None:
    """Raise DataError for a file whose lines are parts of a table by its name."""
    if file.suffix.lower() in _TABLES:
        raise DataError(
            f"{file} is a {file.suffix} file, whose lines are no texts: save a text a line as .txt, or an object a "
            'line as .jsonl, such as {"text": "...", "label": "..."}'
        )


def check_memory(file: Path) -> None:
    """Raise DataError if the tokens of a file would not fit into the free memory."""
    size, free = file.stat().st_size, free_bytes()
    if size * _BYTES_IN_MEMORY > free:
        raise DataError(
            f"{file} is of {format_bytes(size)}, and its tokens take up to {format_bytes(size * _BYTES_IN_MEMORY)}; "
            f"{format_bytes(free)} of memory are free: give a smaller file"
        )


def _iterate_lines(file: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the lines that are not blank, each with its place in words."""
    check_memory(file)
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


def _parse(name: str, line: str, text_key: str, label_key: str | None) -> Text:
    def bad(reason: str, remedy: str) -> Text:
        return Text(name, fault=UnreadableExample(name, reason, remedy))

    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return bad("is no JSON", f'write an object a line, such as {{"{text_key}": "..."}}')
    if not isinstance(values, dict):
        return bad("is no object of JSON", f'write an object a line, such as {{"{text_key}": "..."}}')
    if text_key not in values:
        keys = ", ".join(list(values)[:5]) or "none at all"
        return bad(f"has no key {text_key}, but {keys}", "data.text_key=<key> says where the texts are")
    text = values[text_key]
    if not isinstance(text, str):
        return bad(f"has the {text_key} {_show(text)}, which is no text", "write a text in quotes")
    try:
        text.encode()
    except UnicodeEncodeError:
        return bad(f"has a {text_key} with half a character, \\u{ord(text[_find_half(text)]):04x}", "correct it")
    if label_key is None:
        return Text(name, text)
    label = values.get(label_key)
    if isinstance(label, bool) or not isinstance(label, str | int) or not str(label).strip():
        shown = f"has the {label_key} {_show(label)}" if label_key in values else f"has no key {label_key}"
        return bad(
            f"{shown}, and no class",
            "write the class as a text or a whole number, or data.label_key=<key> says where the classes are",
        )
    return Text(name, text, normal_form(str(label).strip()))


def _find_half(text: str) -> int:
    return next(place for place, character in enumerate(text) if 0xD800 <= ord(character) < 0xE000)


def _show(value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=True)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
