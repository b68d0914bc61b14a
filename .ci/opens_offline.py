"""Fails if a page of a built site would fetch a script, a style, a font or a picture from the network.

python .ci/opens_offline.py site
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

REMOTE = re.compile(r"(?:https?:)?//")
IN_STYLE = re.compile(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^\s\"')]*")
FOLLOWED = {"a"}  # fetched when the reader asks for it


class Fetched(HTMLParser):
    """Collects what a browser fetches from elsewhere with a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in FOLLOWED:
            values = [value or "" for name, value in attrs if name in ("src", "href", "data", "srcset")]
            self.found += [value for value in values if REMOTE.match(value)]


def fetched(file: Path) -> list[str]:
    text = file.read_text()
    if file.suffix == ".css":
        return IN_STYLE.findall(text)
    parser = Fetched()
    parser.feed(text)
    return parser.found


def main(folder: str) -> int:
    files = sorted(file for file in Path(folder).rglob("*") if file.suffix in (".html", ".css"))
    wrong = [f"{file}: {address}" for file in files for address in fetched(file)]
    print("\n".join(wrong) or f"{len(files)} files of {folder} fetch nothing from the network")
    return 1 if wrong or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
