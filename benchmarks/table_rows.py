"""Memory and seconds to open a table of many rows.

    .venv/bin/python benchmarks/table_rows.py                       # 10 million rows; minutes
    .venv/bin/python benchmarks/table_rows.py --parts rows          # their cells and targets alone
    .venv/bin/python benchmarks/table_rows.py --rows 1000000 --parts files

Each case runs in a process of its own. Memory is the largest resident memory, less that of the process before the table
is opened. The parts are `rows`: cells and targets; `source`: all of it, as if each row's file were there; `files`: with
files that are there, hard links to a few.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

CASES = {  # the targets of row i, and the keys
    "classes": (lambda row: f"kind{row % 50}", ["label"]),
    "two labels": (lambda row: f"{row % 2},{row % 3 == 0:d}", ["smoke", "fire"]),
    "a number": (lambda row: f"{row % 1000 / 8}", ["age"]),
}
FOLDERS = 1000
LINKS = 50_000  # to one file; file systems allow some 65,000


def name_of(row: int) -> str:
    return f"{row % FOLDERS:03}/{row:08}.png"


def write_table(file: Path, rows: int, case: str) -> None:
    target, columns = CASES[case]
    with file.open("w", encoding="utf-8") as stream:
        stream.write(",".join(["image", *columns]) + "\n")
        stream.writelines(f"{name_of(row)},{target(row)}\n" for row in range(rows))


def write_images(folder: Path, rows: int) -> None:
    from PIL import Image

    for number in range(FOLDERS):
        (folder / f"{number:03}").mkdir(parents=True)
    for row in range(rows):
        if row % LINKS == 0:
            first = folder / name_of(row)
            Image.fromarray(np.zeros([4, 4, 3], np.uint8)).save(first)
        else:
            os.link(first, folder / name_of(row))


def measure(table: Path, case: str, rows: int, parts: str) -> None:
    """Print the number of rows, the bytes and the seconds."""
    import tensorflow as tf

    from accumtrain.data.config import TableConfig
    from accumtrain.data.source import Wanted
    from accumtrain.data.sources import folder as image_files
    from accumtrain.data.table import image_files as listed
    from accumtrain.data.table.columns import open_all, read_rows
    from accumtrain.data.table.source import open_table
    from accumtrain.data.targets.classes import ClassTargets
    from accumtrain.data.targets.labels import LabelTargets
    from accumtrain.data.targets.numbers import NumberTargets

    tf.constant(0)
    readers: dict[str, type[ClassTargets] | type[LabelTargets] | type[NumberTargets]]
    readers = {"classes": ClassTargets, "two labels": LabelTargets, "a number": NumberTargets}
    reader = readers[case]()
    columns: list[str | int] = [*CASES[case][1]]
    label = columns[0] if case == "classes" else [*columns]
    config = TableConfig(path=str(table), image_column="image", label_column=label, image_size=4)
    if parts == "source":  # in the place of the file system
        listed.walk_files = lambda folder: (folder / name_of(row) for row in range(rows))
        image_files.read_unusual_headers = lambda files: {}
        image_files.get_file_size = lambda file: 100
    before, begun = resident(), time.perf_counter()
    if parts == "rows":
        read = read_rows(config, reader, open_all(config))
        count = len(reader.read_columns(read.labels, read.locate).values)
    else:
        count = sum(split.size for split in open_table(config, Wanted(reader=reader)).splits.values())
    print(count, resident(peak=True) - before, time.perf_counter() - begun)


def resident(*, peak: bool = False) -> int:
    if peak:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--parts", choices=("rows", "source", "files"), default="source")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--folder", type=Path, help="where the files are written; a temporary folder without it")
    parser.add_argument("--measure", type=Path, metavar="TABLE", help="one case in this process")
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure, arguments.cases[0], arguments.rows, arguments.parts)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        if arguments.parts == "files":
            write_images(Path(folder), arguments.rows)
        print("| targets | rows | bytes a row | seconds |\n|---|---|---|---|")
        for case in arguments.cases:
            table = Path(folder, "labels.csv")
            write_table(table, arguments.rows, case)
            options = ["--rows", str(arguments.rows), "--parts", arguments.parts, "--cases", case]
            command = [sys.executable, __file__, "--measure", str(table), *options]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            count, size, seconds = output.split()[-3:]
            print(f"| {case} | {int(count):,} | {int(size) / int(count):.0f} | {float(seconds):.0f} |", flush=True)


if __name__ == "__main__":
    main()
