"""The stored facts, a text file for each section. Its first line names the machine that made it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tests.machine import machine

FOLDER = Path(__file__).with_name("stored")
DIGEST = re.compile(r" sha256=\w+")  # of floating-point numbers, whose bits other kernels change


def write(name: str, lines: Iterable[str]) -> None:
    """Store the lines of a section."""
    file(name).write_text("\n".join([machine(), *lines]) + "\n")


def both(name: str, lines: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return stored and given lines, without digests if another machine made the stored ones."""
    made_on, *stored = file(name).read_text().splitlines()
    now = list(lines)
    if made_on == machine():
        return stored, now
    return [DIGEST.sub("", line) for line in stored], [DIGEST.sub("", line) for line in now]


def file(name: str) -> Path:
    """Return the file of a section."""
    return FOLDER / f"{name}.txt"
