"""The same run on one device, virtual replicas and worker processes (some ten minutes).

    .venv/bin/python benchmarks/replication.py [--updates 20 --norm group --sums float64]

RevNet-38 on digits, batch_size=64 in micro-batches of 8 whatever computes them. Prints how far the final weights of
each way are from those of one device: the largest difference of a variable, relative to its norm.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

from accumtrain.shell.workers import start_workers

WAYS = {  # how many workers, 0 is one process without; overrides
    "1 device x 8": (0, ["device=cpu", "accum.steps=8"]),
    "2 virtual replicas x 4": (0, ["device=mirrored", "device.virtual=2", "accum.steps=4"]),
    "4 virtual replicas x 2": (0, ["device=mirrored", "device.virtual=4", "accum.steps=2"]),
    "2 workers x 4": (2, ["accum.steps=4"]),
    "2 workers x 2 virtual replicas x 2": (2, ["device.virtual=2", "accum.steps=2"]),
}
OPTIMIZERS = {"adafactor": ["optim=adafactor"], "adam": ["optim=adam"], "Nadam": ["optim=keras", "optim.name=Nadam"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--norm", default="group")
    parser.add_argument("--sums", default="float64", help="accum.dtype")
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, default=list(OPTIMIZERS))
    asked = parser.parse_args()
    shared = [
        "model=revnet38",
        f"model.norm={asked.norm}",
        f"precision={asked.precision}",
        f"accum.dtype={asked.sums}",
        f"train.steps={asked.updates}",
        "schedule=constant",
    ]
    for optimizer in asked.optimizers:
        with tempfile.TemporaryDirectory(prefix="accumtrain-replication-") as folder:
            ends = {
                way: weights(Path(folder), way, count, [*shared, *OPTIMIZERS[optimizer], *overrides], asked.updates)
                for way, (count, overrides) in WAYS.items()
            }
        one = ends["1 device x 8"]
        for way, end in ends.items():
            worst = max(np.linalg.norm(end[name] - one[name]) / np.linalg.norm(one[name]) for name in one)
            values = sum(map(np.size, one.values()))
            same = sum(int(np.sum(end[name] == one[name])) for name in one)
            print(f"{optimizer:10} {way:36} {worst:.1e}  {same:,} of {values:,} values the same")


def weights(folder: Path, way: str, count: int, overrides: list[str], updates: int) -> dict[str, np.ndarray]:
    """Trains by `count` workers and reads the weights of the last checkpoint."""
    name = way.replace(" ", "-")
    arguments = [*overrides, f"run.dir={folder}", f"run.name={name}"]
    if count == 0:
        codes = [subprocess.run([sys.executable, "-m", "accumtrain", *arguments], stdout=subprocess.DEVNULL).returncode]
    else:
        codes = [worker.wait() for worker in start_workers(count, arguments)]
    if any(codes):
        sys.exit(f"{way}: exit codes {codes}")
    reader = tf.train.load_checkpoint(str(folder / name / "checkpoints" / f"step-{updates}" / "state"))
    values = {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map() if key.startswith("model/")}
    return {key: value for key, value in values.items() if np.linalg.norm(value) > 0}


if __name__ == "__main__":
    main()
