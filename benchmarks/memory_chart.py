"""Tensor memory and time per image against the micro-batch, beside Keras and PyTorch (about half an hour, 9 GB).

    .venv/bin/python benchmarks/memory_chart.py                          # into docs/memory_chart.png
    .venv/bin/python benchmarks/memory_chart.py --memory-only --peers keras

RevNet-104 stored, recomputed and reversed, and the peers' ResNet-101, as they have no RevNet: 224 px, float32, Adam.
A point is a process of its own (peers/), one after the other. Memory is that of all tensors at the peak of an update:
weights, gradients, Adam's state, activations, and the kernels' scratch memory as far as the framework's allocator has
it. Keras gets the allocator that counts (TF_CPU_ALLOCATOR_USE_BFC); PyTorch's profiler tells each allocation. Time is
the median of --rounds updates of one micro-batch: give it a quiet machine. PyTorch needs `pip install '.[peers]'`.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
from compare import Case, started
from matplotlib import pyplot
from workbench import Table

OUTPUT = Path(__file__).parents[1] / "docs" / "memory_chart.png"
IMAGE_SIZE = 224
WARM_UP = 2  # turns after the first update; PyTorch's profiler takes one of them


class Line(NamedTuple):
    """A curve: the worker of compare.py, its model, and the style of the line."""

    worker: str
    model: str
    style: str


LINES = {
    "RevNet-104, stored": Line("ours", "model=revnet104 model.memory=store", "-C0o"),
    "RevNet-104, recomputed": Line("ours", "model=revnet104 model.memory=recompute", "-C1o"),
    "RevNet-104, reversed": Line("ours", "model=revnet104 model.memory=reverse", "-C2o"),
    "Keras ResNet-101": Line("keras", "resnet101", "--C3s"),
    "PyTorch ResNet-101": Line("torch", "resnet101", "--C4^"),
}


class Point(NamedTuple):
    """Gigabytes (2^30) of tensors at the peak, and seconds per image; without rounds there are no seconds."""

    micro_batch: int
    gigabytes: float
    seconds: float | None


def measure(line: Line, micro_batch: int, rounds: int) -> Point:
    """Measure updates of one micro-batch in a process of its own."""
    peer = "" if line.worker == "ours" else line.model
    case = Case(line.model, peer, "float32", micro_batch, 1, IMAGE_SIZE)
    worker = started(line.worker, case, "--memory")
    worker.answer()
    peak = max(worker.turn().get("tensor_peak_bytes", 0) for _ in range(WARM_UP))
    speeds = [worker.turn()["units_per_second"] for _ in range(rounds)]
    worker.close()
    return Point(micro_batch, peak / 2**30, 1 / statistics.median(speeds) if speeds else None)


def draw(curves: dict[str, list[Point]], path: Path) -> None:
    """One panel of memory; one of time, if it was measured."""
    timed = all(point.seconds is not None for points in curves.values() for point in points)
    figure, axes = pyplot.subplots(
        1, 1 + timed, figsize=(6 + 5 * timed, 4.2), squeeze=False, layout="constrained", facecolor="white"
    )
    for name, points in curves.items():
        sizes, style = [point.micro_batch for point in points], LINES[name].style
        axes[0, 0].plot(sizes, [point.gigabytes for point in points], style, label=name)
        if timed:
            axes[0, 1].plot(sizes, [point.seconds for point in points], style, label=name)
    for axis, quantity in zip(axes[0], ("GB of tensors at the peak", "seconds per image"), strict=False):
        axis.set(xlabel="images in a micro-batch", ylabel=quantity, xlim=(0, None), ylim=(0, None))
        axis.set_xticks([point.micro_batch for point in next(iter(curves.values()))])
        axis.grid(alpha=0.3)
    axes[0, 0].legend()
    figure.suptitle(f"{IMAGE_SIZE} x {IMAGE_SIZE} pixels, float32, Adam, CPU")
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def main(options: argparse.Namespace) -> None:
    table, curves = Table("curve", "micro-batch", "tensors, GB", "s per image"), dict[str, list[Point]]()
    for name, line in LINES.items():
        if line.worker not in ("ours", *options.peers):
            continue
        curves[name] = []
        for micro_batch in options.micro_batch:
            point = measure(line, micro_batch, 0 if options.memory_only else options.rounds)
            curves[name].append(point)
            seconds = "" if point.seconds is None else f"{point.seconds:.3f}"
            table.row(name, micro_batch, f"{point.gigabytes:.2f}", seconds)
    draw(curves, options.output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--micro-batch", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--peers", nargs="*", choices=("keras", "torch"), default=["keras", "torch"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory-only", action="store_true", help="without the panel of time")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="the picture")
    main(parser.parse_args())
