"""Memory and seconds to open a table of many rows: at most 100 bytes a row are the aim.

    .venv/bin/python benchmarks/table_rows.py                          # rows and targets of 10 million; minutes
    .venv/bin/python benchmarks/table_rows.py --rows 1000000 --files   # whole sources, with a file for each row

Each case runs in a process of its own. Memory is the largest resident memory, less that of the process before the table
is opened. The files are hard links to a few, which take no space.
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


def measure(table: Path, case: str, *, files: bool) -> None:
    """Print the bytes and seconds of a table's rows, and of a whole source if the images are there."""
    import tensorflow as tf

    from accumtrain.data.config import TableConfig
    from accumtrain.data.sources.image_table import open_table
    from accumtrain.data.sources.table_columns import Folders, read_rows
    from accumtrain.data.sources.targets import ClassTargets, LabelTargets, NumberTargets

    tf.constant(0)
    reader = {"classes": ClassTargets, "two labels": LabelTargets, "a number": NumberTargets}[case]()
    columns = CASES[case][1]
    label = columns[0] if case == "classes" else columns
    config = TableConfig(path=str(table), image_column="image", label_column=label, image_size=4)
    before, begun = resident(), time.perf_counter()
    if files:
        source = open_table(config, 0, reader)
        count = sum(split.size for split in source.splits.values())
    else:
        rows = read_rows(config, reader, Folders())
        count = len(reader.read_columns(rows.labels, rows.locate).values)
    print(count, resident(peak=True) - before, time.perf_counter() - begun)


def resident(*, peak: bool = False) -> int:
    if peak:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--files", action="store_true", help="with a file for each row")
    parser.add_argument("--folder", type=Path, help="where the files are written; a temporary folder without it")
    parser.add_argument("--measure", nargs=2, metavar=("TABLE", "CASE"), help="one case in this process")
    arguments = parser.parse_args()
    if arguments.measure:
        measure(Path(arguments.measure[0]), arguments.measure[1], files=arguments.files)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        if arguments.files:
            write_images(Path(folder), arguments.rows)
        print("| targets | rows | bytes a row | seconds |\n|---|---|---|---|")
        for case in CASES:
            table = Path(folder, "labels.csv")
            write_table(table, arguments.rows, case)
            command = [sys.executable, __file__, "--measure", str(table), case, *["--files"] * arguments.files]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            count, size, seconds = output.split()[-3:]
            print(f"| {case} | {int(count):,} | {int(size) / int(count):.0f} | {float(seconds):.0f} |", flush=True)


if __name__ == "__main__":
    main()
