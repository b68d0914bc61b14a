"""Kills one of two workers at random moments: how long the other lives, and whether the continued run is the same.

    .venv/bin/python benchmarks/killed_workers.py [--kills 10]

Some ten minutes. RevNet-38 on digits in two local processes. Prints for each kill the update that the run had
reached, the exit codes, the seconds until both processes were gone, and how many values of the state at the end of the
continued run differ from those of one that nobody disturbed.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from accumtrain.shell.workers import start_workers

UPDATES = 60
OVERRIDES = ["batch_size=64", "accum.steps=2", f"train.steps={UPDATES}", "checkpoint.every=10", "log.every=5"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    with tempfile.TemporaryDirectory(prefix="accumtrain-killed-") as name:
        folder = Path(name)
        started = time.monotonic()
        if any(worker.wait() for worker in start(folder, "whole")):
            sys.exit("the undisturbed run failed")
        seconds = time.monotonic() - started
        expected = state(folder / "whole")
        print(f"undisturbed: {UPDATES} updates in {seconds:.0f} s", flush=True)
        for kill in range(asked.kills):
            run = f"killed-{kill}"
            pair = start(folder, run)
            time.sleep(chance.uniform(0.1, 0.95) * seconds)
            victim = chance.randrange(2)
            pair[victim].kill()
            killed = time.monotonic()
            codes = [worker.wait() for worker in pair]
            gone = time.monotonic() - killed
            reached = last_update(folder / run)
            again = [worker.wait() for worker in start(folder, run)]
            ended = state(folder / run) if not any(again) else {}
            different = sum(int(np.sum(expected[key] != ended[key])) for key in expected) if ended else "all"
            values = sum(map(np.size, expected.values()))
            print(
                f"kill {kill + 1}: worker {victim} after update {reached}; exit codes {codes} after {gone:.1f} s;",
                end=" ",
            )
            print(f"started again: exit codes {again}, {different} of {values:,} values differ", flush=True)


def start(folder: Path, name: str) -> list[subprocess.Popen]:
    return start_workers(2, [*OVERRIDES, f"run.dir={folder}", f"run.name={name}"])


def last_update(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return int(lines[-1].split('"step": ')[1].split(",")[0]) if lines else 0


def state(run: Path) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(run / "checkpoints" / f"step-{UPDATES}" / "state"))
    names = reader.get_variable_to_shape_map()
    kept = [name for name in names if "OBJECT_GRAPH" not in name and "save_counter" not in name]
    return {name: reader.get_tensor(name) for name in kept}


if __name__ == "__main__":
    main()
