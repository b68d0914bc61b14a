"""Whether a long run grows: resident memory, open files and threads of a training that saves after every update.

    .venv/bin/python benchmarks/soak.py [--minutes 30] [overrides ...]

Looks at the process every two seconds. Prints the medians of each tenth of the time after the first, in which memory
is still being taken, and the updates made.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import psutil

from accumtrain.process.program import own_program

SMALL = ["model=lenet5", "data=synthetic", "data.image_size=32", "batch_size=64", "accum.steps=4"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("overrides", nargs="*")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="accumtrain-soak-") as name:
        long = ["checkpoint.every=1", "train.steps=100000000", f"run.dir={name}", "run.name=soak"]
        process = subprocess.Popen([*own_program(), *SMALL, *long, *asked.overrides], stdout=subprocess.DEVNULL)
        looks: list[tuple[int, int, int]] = []
        end = time.monotonic() + 60 * asked.minutes
        while time.monotonic() < end and process.poll() is None:
            time.sleep(2)
            watched = psutil.Process(process.pid)
            looks.append((watched.memory_info().rss, watched.num_fds(), watched.num_threads()))
        os.kill(process.pid, signal.SIGTERM)
        code = process.wait()
        summary = json.loads((Path(name) / "soak/summary.json").read_text())
    tenth = len(looks) // 10
    for part in range(1, 10):
        memory, files, threads = map(statistics.median, zip(*looks[part * tenth : (part + 1) * tenth], strict=True))
        print(f"{part + 1:2}/10: {memory / 2**20:.1f} MB resident, {files:.0f} open files, {threads:.0f} threads")
    print(f"exit code {code}, {summary['step']:,} updates, {summary['checkpoints']}")


if __name__ == "__main__":
    main()
