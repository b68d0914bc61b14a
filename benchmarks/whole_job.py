"""A whole job in a gigabyte: RevNet-104 against ResNet-101 in Keras, effective batch 64 at 224 px (about ten minutes).

    .venv/bin/python benchmarks/whole_job.py              # 11 GB for Keras at batch 64
    .venv/bin/python benchmarks/whole_job.py --torch      # PyTorch too: pip install -e '.[peers]'
    .venv/bin/python benchmarks/whole_job.py --container 1200   # ours alone, within so many MB, beside without (root)

Ours is the command line with accum.steps=auto and device.memory_limit_mb=1000, two updates, an evaluation and a
checkpoint; the others make two updates in memory. All in float32. Compared is the peak of resident memory. In the
container the micro-batch is 4.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from command_line import result
from container import container

GB = 2**30
JOB = [
    *("model=revnet104", "optim=adafactor", "batch_size=64", "data=synthetic", "data.image_size=224"),
    *("data.num_classes=1000", "data.train_examples=128", "data.test_examples=64", "train.steps=2"),
]
LIMITED = ("accum.steps=auto", "device.memory_limit_mb=1000")
SMALL = ("accum.steps=16",)


def ours(*overrides: str) -> dict[str, Any]:
    """The run's summary."""
    with tempfile.TemporaryDirectory() as folder:
        return result(Path(folder), "summary.json", *JOB, *overrides, show=True)


def in_container(megabytes: int, rounds: int) -> None:
    """By turns in a container and without one: images/s, and the ratio of each pair."""
    ratios = []
    for _ in range(rounds):
        with container(megabytes):
            inside = ours(*SMALL)["examples_per_second"]
        outside = ours(*SMALL)["examples_per_second"]
        ratios.append(inside / outside)
        print(f"{inside:.2f} images/s within {megabytes} MB, {outside:.2f} without a limit", flush=True)
    print(f"micro-batch 4 x 16 within {megabytes} MB: {statistics.median(ratios):.2f} of the speed without a limit")


def peer(script: str, micro_batch: int, steps: int) -> float:
    """Peak resident bytes of two updates."""
    command = [sys.executable, f"peers/{script}", "--model=resnet101", "--precision=float32", "--image-size=224"]
    done = subprocess.run(
        [*command, f"--micro-batch={micro_batch}", f"--steps={steps}"],
        input="\n",  # one more update after the first
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
    )
    return max(json.loads(line)["rss_peak_bytes"] for line in done.stdout.splitlines())


def main(torch: bool) -> None:
    summary = ours(*LIMITED)
    memory = summary["memory"]
    resident = memory["rss_peak_bytes"]
    print(
        f"ours, RevNet-104, Adafactor, micro-batch {summary['micro_batch_size']} x {summary['accum_steps']}: "
        f"{resident / GB:.2f} GB resident, {memory['tensor_peak_bytes'] / 2**20:.0f} MB of tensors, "
        f"{summary['examples_per_second']:.2f} images/s",
        flush=True,
    )
    peers = [("Keras", "keras_fit.py", 16, 4), ("Keras", "keras_fit.py", 64, 1)]
    peers += [("PyTorch", "torch_fit.py", 64, 1)] if torch else []
    for name, script, micro_batch, steps in peers:
        theirs = peer(script, micro_batch, steps)
        what = f"{name}, ResNet-101, Adam, micro-batch {micro_batch} x {steps}"
        print(f"{what}: {theirs / GB:.2f} GB resident; ours is {resident / theirs:.2f} of it", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--container", type=int, metavar="MB")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.container is None:
        main(arguments.torch)
    else:
        in_container(arguments.container, arguments.rounds)
