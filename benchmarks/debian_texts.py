"""Write a dictionary or a book in English as JSON lines: real texts for a machine without a network for data.

    .venv/bin/python benchmarks/debian_texts.py dictionary entries.jsonl
    .venv/bin/python benchmarks/debian_texts.py book chapters.jsonl

apt-get fetches them as Debian's packages. The dictionary is the Collaborative International Dictionary of English
(GPL), 33 MB of entries. The book is the King James Bible (public domain), 4 MB of chapters.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import subprocess
import tempfile
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

ENTRY = re.compile(r"\n(?=\S)")  # its first line is the only one that is not indented
NOTICE = "00-database"  # before the names of entries about the file
LZW = b"\x1f\x9d"  # the first bytes of what the program compress wrote


def read_entries(content: bytes) -> list[str]:
    """Return the entries, without the sources in brackets and the indents of their lines."""
    text = gzip.decompress(content).decode(errors="replace")
    entries = [re.sub(r"\n\s+", "\n", re.sub(r"\s*\[1913 Webster\]", "", entry)).strip() for entry in ENTRY.split(text)]
    return [entry for entry in entries if entry and not entry.startswith(NOTICE)]


def read_chapters(content: bytes) -> list[str]:
    """Return the chapters, a verse a line, without names of books and numbers."""
    packed = content[content.index(LZW) :]
    text = subprocess.run(["gzip", "--decompress"], input=packed, check=True, capture_output=True).stdout.decode()
    _, *verses = text.splitlines()  # such as "Ge1:1 In the beginning", below the title
    chapters = groupby((verse.partition(" ") for verse in verses), lambda verse: verse[0].partition(":")[0])
    return ["\n".join(verse for _, _, verse in chapter) for _, chapter in chapters]


class Packaged(NamedTuple):
    """A file of texts in a package of Debian, and the function from its content to the texts."""

    package: str
    path: str
    read: Callable[[bytes], list[str]]


TEXTS = {
    "dictionary": Packaged("dict-gcide", "usr/share/dictd/gcide.dict.dz", read_entries),
    "book": Packaged("bible-kjv-text", "usr/lib/bible.data", read_chapters),
}


def fetch_texts(name: str) -> list[str]:
    """Return the texts of one of TEXTS."""
    packaged = TEXTS[name]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", packaged.package], cwd=folder, check=True, capture_output=True)
        (package,) = Path(folder).glob("*.deb")
        subprocess.run(["dpkg-deb", "--extract", package, folder], check=True)
        return packaged.read((Path(folder) / packaged.path).read_bytes())


def write_texts(texts: list[str], file: Path) -> None:
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=TEXTS)
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    texts = fetch_texts(options.name)
    write_texts(texts, options.file)
    print(f"{len(texts):,} texts, {options.file.stat().st_size / 2**20:.0f} MB: {options.file}")


if __name__ == "__main__":
    main()
