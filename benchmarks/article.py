"""The picture of the TensorFlow RevNet article (Li 2018) on this machine: stored against reversed (some hours, 19 GB).

    .venv/bin/python benchmarks/article.py
    .venv/bin/python benchmarks/article.py --batch 8 --updates 10

RevNet-104, 224 px, float32, SGD with momentum, 100 updates of 128 images: resident memory over time, and images per
second over the updates. Each is the command of conf/experiment/synthetic_revnet104.yaml in a process of its own, one
after the other.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import matplotlib
import psutil

matplotlib.use("Agg")
from matplotlib import pyplot
from workbench import Table

from accumtrain.runs.contents import read_records, read_summary

OUTPUT = Path(__file__).parents[1] / "docs" / "article.png"
POLICIES = {"store": "stored", "reverse": "reversed"}
INTERVAL = 0.5  # seconds between two looks at the memory


class Curves(NamedTuple):
    """What a run shows: (seconds, GB resident), (update, images per second), and MB of tensors at the peak."""

    memory: list[tuple[float, float]]
    speed: list[tuple[int, float]]
    tensors: float


def run(policy: str, batch: int, updates: int, folder: Path) -> Curves:
    """Train with a memory policy, and look at the process meanwhile. Raise SystemExit if it fails."""
    settings = [f"model.memory={policy}", f"batch_size={batch}", f"train.steps={updates}", f"eval.every={updates}"]
    place = [f"run.dir={folder}", f"run.name={policy}"]
    command = [sys.executable, "-m", "accumtrain", "experiment=synthetic_revnet104", *settings, *place]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    watched, started, memory = psutil.Process(process.pid), time.perf_counter(), list[tuple[float, float]]()
    while process.poll() is None:
        memory.append((time.perf_counter() - started, watched.memory_info().rss / 2**30))
        time.sleep(INTERVAL)
    summary = read_summary(folder / policy)
    if process.returncode or summary is None:
        raise SystemExit(f"model.memory={policy}, batch {batch}: the run ended with code {process.returncode}")
    records = read_records(folder / policy)
    trained = [record for record in records if record["split"] == "train" and record.get("examples_per_second")]
    speed = [(record["step"], record["examples_per_second"]) for record in trained]
    # a process that has ended shows none until it is waited for
    alive = [(seconds, size) for seconds, size in memory if size]
    return Curves(alive, speed, summary["memory"]["tensor_peak_bytes"] / 2**20)


def draw(curves: dict[str, Curves], batch: int, path: Path) -> None:
    figure, (memory, speed) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for policy, found in curves.items():
        memory.plot(*zip(*found.memory, strict=True), label=POLICIES[policy])
        speed.plot(*zip(*found.speed, strict=True), label=POLICIES[policy])
    memory.set(xlabel="seconds", ylabel="GB resident", ylim=(0, None))
    speed.set(xlabel="update", ylabel="images / s", ylim=(0, None))
    for axis in (memory, speed):
        axis.grid(alpha=0.3)
        axis.legend()
    figure.suptitle(f"RevNet-104, 224 px, float32, batch {batch}")
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def main(options: argparse.Namespace) -> None:
    table, curves = Table("activations", "resident, GB", "tensors, MB", "images/s"), dict[str, Curves]()
    with tempfile.TemporaryDirectory() as folder:
        for policy, word in POLICIES.items():
            curves[policy] = found = run(policy, options.batch, options.updates, Path(folder))
            resident, speed = max(size for _, size in found.memory), statistics.median(rate for _, rate in found.speed)
            table.row(word, f"{resident:.2f}", f"{found.tensors:.0f}", f"{speed:.2f}")
    draw(curves, options.batch, options.output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the picture goes")
    main(parser.parse_args())
