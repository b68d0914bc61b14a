"""What strace tells of a save: its file-system calls, each with its number among the calls of that name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

CALLS = ("openat", "mkdir", "write", "fsync", "fadvise64", "rename", "unlink", "unlinkat", "rmdir")
NAME = re.compile(r"(?:\d+ +)?(\w+)\(")
MARKER = re.compile(r"kill\(\d+, 0\)")


def calls_in(log: Path, *, after_marker: bool = False) -> Iterator[tuple[str, int]]:
    """The calls in a log of strace. They are counted from its beginning, also if those before a marker are left out."""
    counts: Counter[str] = Counter()
    saving = not after_marker
    for line in log.read_text().splitlines():
        saving = saving or bool(MARKER.search(line))
        if (match := NAME.match(line)) and match[1] in CALLS:
            counts[match[1]] += 1
            if saving:
                yield match[1], counts[match[1]]
