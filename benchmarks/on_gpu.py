"""Updates on one GPU in turn: stored and reversed, TensorFlow's kernels and XLA's, and PyTorch.

    .venv/bin/python benchmarks/on_gpu.py --torch /path/to/python

All workers (peers/) start at once and share the GPU's memory. Then rounds: each makes updates for about a second while
the others wait. `--torch` is the Python of an environment with PyTorch for GPUs; without it PyTorch is left out.
`--only` takes the workers whose names begin so: nine at a time were tried on 140 GB, and all of them need some 150 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PEERS = Path(__file__).parent / "peers"
IMAGES, STEPS = 64, 2  # of a micro-batch, and micro-batches of an update
SHAPE = ("--micro-batch", str(IMAGES), "--steps", str(STEPS), "--image-size", "224")
PRECISIONS = {
    "float32": ("float32", ""),
    "TensorFloat-32": ("float32", " device.tensor_float_32=true"),
    "bfloat16": ("bfloat16", ""),
}
MODELS = {
    "RevNet-104 reversed": "model=revnet104",
    "RevNet-104 stored": "model=revnet104 model.memory=store",
    "ResNet-50": "model=resnet50",
}
TORCH = ("resnet50", "resnet101")
SECONDS = 0.7  # of a worker's turn, about


class Worker:
    """A process that makes an update for every line it is sent. `peak` is in bytes, of the GPU's memory."""

    def __init__(self, command: list[str]):
        self._command = command
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
        )
        self.peak, self.speeds, self._updates = 0, list[float](), 1

    def begin(self) -> dict[str, Any]:
        """Waits for the first update, makes two more, and decides how many are a turn. Returns the first answer."""
        first = self._answer()
        for _ in range(2):
            started = time.perf_counter()
            self._update()
        self._updates = max(1, round(SECONDS / (time.perf_counter() - started)))
        return first

    def turn(self) -> None:
        started = time.perf_counter()
        for _ in range(self._updates):
            self._update()
        self.speeds.append(self._updates * IMAGES * STEPS / (time.perf_counter() - started))

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()

    def _update(self) -> None:
        assert self._process.stdin
        self._process.stdin.write("go\n")
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{shlex.join(self._command)}: ended with {self._process.wait()}; run it alone to see why")
        answer = json.loads(line)
        self.peak = max(self.peak, answer.get("gpu_peak_bytes", 0))
        return answer


def commands(torch: str | None) -> dict[str, list[str]]:
    """Name -> command of each worker."""
    found = {}
    for precision, (value, key) in PRECISIONS.items():
        for model, overrides in MODELS.items():
            for kernels, xla in {"": "", ", XLA": " device.xla=true"}.items():
                options = ["--model", overrides + key + xla, "--precision", value, *SHAPE]
                found[f"{model}, {precision}{kernels}"] = [sys.executable, str(PEERS / "ours.py"), *options]
    for name in TORCH if torch else ():
        for precision in ("float32", "bfloat16"):
            options = ["--model", name, "--precision", precision, *SHAPE]
            found[f"PyTorch {name}, {precision}"] = [str(torch), str(PEERS / "torch_fit.py"), *options]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", default=None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[""])
    options = parser.parse_args()
    os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    chosen = {
        name: command for name, command in commands(options.torch).items() if name.startswith(tuple(options.only))
    }
    workers = {name: Worker(command) for name, command in chosen.items()}
    starts = {name: worker.begin()["seconds_to_first_update"] for name, worker in workers.items()}
    for _ in range(options.rounds):
        for worker in workers.values():
            worker.turn()
    for name, worker in workers.items():
        worker.close()
        low, high = min(worker.speeds), max(worker.speeds)
        print(
            f"{name:40} {statistics.median(worker.speeds):7.0f} images/s ({low:.0f} to {high:.0f}), "
            f"peak {worker.peak / 2**20:,.0f} MB, first update {starts[name]:.0f} s"
        )


if __name__ == "__main__":
    main()
