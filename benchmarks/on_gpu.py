"""Updates on one GPU in turn: stored and reversed, TensorFlow's kernels and XLA's, and PyTorch.

    .venv/bin/python benchmarks/on_gpu.py --torch /path/to/python

All workers (peers/) start at once and share the GPU's memory. Then rounds: each makes updates for about a second while
the others wait. `--torch` is the Python of an environment with PyTorch for GPUs; without it PyTorch is left out.
`--only` takes the workers whose names begin so: nine at a time were tried on 140 GB, and all of them need some 150 GB.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path

from workbench import Table, Worker, in_turn, timed

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


class Side:
    """A worker whose turn is several updates. `peak` is in bytes, of the GPU's memory."""

    def __init__(self, command: list[str]):
        self.worker = Worker(command, os.environ | {"TF_FORCE_GPU_ALLOW_GROWTH": "true"})
        self.peak, self._updates = 0, 1

    def begin(self) -> float:
        """Waits for the first update, makes two more, and decides how many are a turn. Seconds to the first."""
        first = self.worker.answer()
        self._update()
        self._updates = max(1, round(SECONDS / timed(self._update).seconds))
        return first["seconds_to_first_update"]

    def turn(self) -> float:
        """Images per second."""
        return self._updates * IMAGES * STEPS / timed(self._turn).seconds

    def _turn(self) -> None:
        for _ in range(self._updates):
            self._update()

    def _update(self) -> None:
        self.peak = max(self.peak, self.worker.turn().get("gpu_peak_bytes", 0))


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
    chosen = {
        name: command for name, command in commands(options.torch).items() if name.startswith(tuple(options.only))
    }
    sides = {name: Side(command) for name, command in chosen.items()}
    starts = {name: side.begin() for name, side in sides.items()}
    speeds = in_turn({name: side.turn for name, side in sides.items()}, options.rounds)
    table = Table("", "images/s", "lowest to highest", "peak, MB", "first update, s")
    for name, side in sides.items():
        side.worker.close()
        median, low, high = statistics.median(speeds[name]), min(speeds[name]), max(speeds[name])
        table.row(name, f"{median:.0f}", f"{low:.0f} to {high:.0f}", f"{side.peak / 2**20:,.0f}", f"{starts[name]:.0f}")


if __name__ == "__main__":
    main()
