"""Write the entries of a dictionary of English as JSON lines: real text for a machine without a network for data.

The text is the Collaborative International Dictionary of English (GPL), Debian's package dict-gcide, which apt-get
fetches: 40 MB. An entry is a text.

    .venv/bin/python benchmarks/dictionary.py entries.jsonl
    accumtrain experiment=text_mlm
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import subprocess
import tempfile
from pathlib import Path

PACKAGE = "dict-gcide"
INSIDE = Path("usr/share/dictd/gcide.dict.dz")
ENTRY = re.compile(r"\n(?=\S)")  # its first line is the only one that is not indented
NOTICE = "00-database"  # before the names of entries about the file


def fetch_dictionary() -> str:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", PACKAGE], cwd=folder, check=True, capture_output=True)
        (package,) = Path(folder).glob("*.deb")
        subprocess.run(["dpkg-deb", "--extract", package, folder], check=True)
        return gzip.decompress((Path(folder) / INSIDE).read_bytes()).decode(errors="replace")


def split_entries(text: str) -> list[str]:
    """Return the entries, without the sources in brackets and the indents of their lines."""
    entries = [re.sub(r"\n\s+", "\n", re.sub(r"\s*\[1913 Webster\]", "", entry)).strip() for entry in ENTRY.split(text)]
    return [entry for entry in entries if entry and not entry.startswith(NOTICE)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    file = parser.parse_args().file
    entries = split_entries(fetch_dictionary())
    file.write_text("".join(json.dumps({"text": entry}) + "\n" for entry in entries), encoding="utf-8")
    print(f"{len(entries):,} entries, {file.stat().st_size / 2**20:.0f} MB: {file}")


if __name__ == "__main__":
    main()
