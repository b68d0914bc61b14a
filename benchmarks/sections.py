"""Descriptions of Debian's packages and their sections as two tables, for benchmarks of fine-tuning.

    apt-cache dumpavail | python benchmarks/sections.py sections
    accumtrain model=pretrained model.path=minilm data=table data.path=sections/train.jsonl data.length=32

with data.test_path=sections/test.jsonl.

A description is the one line of the package index. Descriptions that repeat are taken once, and sections of fewer than
100 packages are left out. Packages of one source are in one table: the test table has one of five sources, by hash. The
others are trained on, by hash one of three, so that a training takes minutes on a CPU.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

TEST_PARTS, TRAINED_PARTS = 5, 3
LEAST = 100  # packages of a section


def read_packages(lines: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield source, description and section of each package."""
    fields: dict[str, str] = {}
    for line in [*lines, "\n"]:
        if line == "\n":
            if {"Package", "Description", "Section"} <= fields.keys():
                yield fields.get("Source", fields["Package"]).split()[0], fields["Description"], fields["Section"]
            fields = {}
        elif line[0] != " ":
            key, _, value = line.partition(":")
            fields[key] = value.strip()


def find_table(source: str) -> str | None:
    """Return the table of a source; None for one that is left out."""
    number = int(hashlib.sha256(source.encode()).hexdigest(), 16)
    if number % TEST_PARTS == 0:
        return "test"
    return "train" if number // TEST_PARTS % TRAINED_PARTS == 0 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path, help="the folder to write train.jsonl and test.jsonl into")
    options = parser.parse_args()
    packages = {description: (source, section) for source, description, section in read_packages(sys.stdin)}
    counts = Counter(section for _, section in packages.values())
    options.tables.mkdir(exist_ok=True)
    for table in ("train", "test"):
        rows = [
            {"text": description, "section": section}
            for description, (source, section) in packages.items()
            if counts[section] >= LEAST and find_table(source) == table
        ]
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        (options.tables / f"{table}.jsonl").write_text(text, encoding="utf-8")
        print(f"{table}: {len(rows):,} descriptions of {len({row['section'] for row in rows})} sections")


if __name__ == "__main__":
    main()
