"""Updates on one GPU: JAX, PyTorch, TensorFlow, torch.compile and TensorFlow's XLA, stored and reversed.

    .venv/bin/python benchmarks/on_gpu.py --first
    .venv/bin/python benchmarks/on_gpu.py --torch /path/to/python --minutes 8

`--first` runs the two programs of an update by JAX (two_programs.py): speed and memory, the bits of a run that is
continued in a new process, and weights beside a CPU's. Without it each row of the table is a process (peers/) that has
the GPU alone. The most telling rows come first, and each is printed when it is measured. `--torch` is the Python of an
environment with PyTorch for GPUs; without it PyTorch is left out. No process reserves memory that it does not use.
`--small` takes small networks and images, for a try on a CPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

from workbench import CLASSES, Table, Worker, timed

HERE = Path(__file__).parent
PEERS, TWO_PROGRAMS = HERE / "peers", HERE / "two_programs.py"
ENVIRONMENT = os.environ | {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
SAME_BITS = {"XLA_FLAGS": "--xla_gpu_exclude_nondeterministic_ops=true"}
RUNTIMES = {  # the keys of ours, or the options of PyTorch's
    "JAX": " device.runtime=jax",
    "PyTorch": "",
    "TensorFlow": "",
    "PyTorch, torch.compile": "--compile",
    "TensorFlow, XLA": " device.xla=true",
}
TURNS, SECONDS = 5, 1.0  # of a row, and of a turn, about


@dataclass(frozen=True)
class Sizes:
    """What is compared.

    Attributes:
        device: ours.
        images, steps, pixels: of a micro-batch; micro-batches of an update; width of an image.
        models: name in the table -> overrides of ours.
        torch: name in the table -> PyTorch's name.
        precisions: name in the table -> precision, and a key of ours beside it.
    """

    device: str
    images: int
    steps: int
    pixels: int
    models: dict[str, str]
    torch: dict[str, str]
    precisions: dict[str, tuple[str, str]]


LARGE = Sizes(
    "gpu",
    64,
    2,
    224,
    {
        "RevNet-104 reversed": "model=revnet104",
        "RevNet-104 stored": "model=revnet104 model.memory=store",
        "ResNet-101": "model=resnet101",
        "ResNet-50": "model=resnet50",
    },
    {"ResNet-101": "resnet101", "ResNet-50": "resnet50"},
    {"bfloat16": ("bfloat16", ""), "TensorFloat-32": ("float32", " device.tensor_float_32=true")},
)
SMALL = Sizes(
    "cpu",
    4,
    2,
    32,
    {
        "RevNet-38 reversed": "model=revnet38",
        "RevNet-38 stored": "model=revnet38 model.memory=store",
        "ResNet-20": "model=resnet20",
    },
    {"ResNet-20": "resnet20"},
    {"float32": ("float32", "")},
)


# ---- the table ----


def commands(sizes: Sizes, torch: str | None) -> Iterator[tuple[tuple[str, str, str], list[str]]]:
    """(network, precision, runtime) and the command of each row, the most telling first."""
    shape = ["--micro-batch", str(sizes.images), "--steps", str(sizes.steps), "--image-size", str(sizes.pixels)]
    for name, (precision, key) in sizes.precisions.items():
        options = ["--precision", precision, *shape]
        for runtime, more in RUNTIMES.items():
            if not runtime.startswith("PyTorch"):
                for model, overrides in sizes.models.items():
                    chosen = f"{overrides} device={sizes.device}{key}{more}"
                    yield (model, name, runtime), [sys.executable, str(PEERS / "ours.py"), "--model", chosen, *options]
            elif torch:
                for model, theirs in sizes.torch.items():
                    script = [torch, str(PEERS / "torch_fit.py"), "--model", theirs]
                    yield (model, name, runtime), [*script, *options, *more.split()]


def measure(command: list[str], images: int, seconds: float) -> list[str]:
    """Images per second, their range, the peak of the device's memory and the time to the first update.

    Raises:
        SystemExit, BrokenPipeError: the worker has ended, or was ended after so many seconds.
    """
    worker = Worker(command, ENVIRONMENT)
    timer = Timer(max(0.0, seconds), worker.kill)
    timer.start()
    try:
        start = worker.answer()["seconds_to_first_update"]
        worker.turn()
        updates = max(1, round(SECONDS / timed(worker.turn).seconds))
        peak, speeds = 0, []
        for _ in range(TURNS):
            began = time.perf_counter()
            for _ in range(updates):
                peak = max(peak, worker.turn().get("gpu_peak_bytes", 0))
            speeds.append(updates * images / (time.perf_counter() - began))
    finally:
        timer.cancel()
        worker.close()
    median, low, high = statistics.median(speeds), min(speeds), max(speeds)
    return [f"{median:,.0f}", f"{low:,.0f} to {high:,.0f}", f"{peak / 2**20:,.0f}", f"{start:.0f}"]


def fill_table(sizes: Sizes, torch: str | None, ends: float) -> None:
    table = Table("network", "precision", "runtime", "images/s", "lowest to highest", "peak, MB", "first update, s")
    for names, command in commands(sizes, torch):
        try:
            cells = measure(command, sizes.images * sizes.steps, ends - time.monotonic())
        except (SystemExit, BrokenPipeError) as error:
            if time.monotonic() >= ends:
                print(f"the time is up; not measured: {', '.join(names)} and what follows")
                return
            print(error, file=sys.stderr)
            cells = ["failed", "", "", ""]
        table.row(*names, *cells)


# ---- the two programs of an update ----


def run_first(sizes: Sizes, ends: float) -> None:
    """Prints a line of JSON for each run of the two programs."""
    precision, (name, _) = next(iter(sizes.precisions.items()))
    images = ["data=synthetic", f"data.image_size={sizes.pixels}", f"data.num_classes={CLASSES[sizes.pixels]}"]
    batch = [f"batch_size={sizes.images * sizes.steps}", f"accum.steps={sizes.steps}", f"precision={name}"]
    model = [*next(iter(sizes.models.values())).split(), "optim=adam", *images, *batch]
    digits = ["model=revnet38", f"batch_size={16 * sizes.images}", "accum.steps=2", "optim=adam"]

    def call(title: str, *arguments: object, **environment: str) -> None:
        command = [sys.executable, str(TWO_PROGRAMS), *map(str, arguments)]
        print(title, end="", flush=True)
        subprocess.run(command, env=ENVIRONMENT | environment, check=True, timeout=max(1.0, ends - time.monotonic()))

    with tempfile.TemporaryDirectory() as folder:
        large, small, cache = (Path(folder, each) for each in ("update", "digits", "cache"))
        whole, half, ours = (Path(folder, f"{each}.npz") for each in ("whole", "half", "ours"))
        call("", "write", large, *model)
        call(f"speed, {precision}: ", "run", large, "--resident", "--updates", 30, "--cache", cache)
        call("second start: ", "run", large, "--resident", "--updates", 30, "--cache", cache)
        kept = ("--cache", cache, "--updates")
        call("20 updates of the same bits: ", "run", large, *kept, 20, "--save", whole, **SAME_BITS)
        call("10 of them: ", "run", large, *kept, 10, "--save", half, **SAME_BITS)
        continued = ("--first", 10, "--restore", half, "--compare", whole)
        call("10 more in a new process: ", "run", large, *kept, 20, *continued, **SAME_BITS)
        call("", "write", "--data", 20, "--highest", small, *digits)
        call("digits: ", "run", small, "--updates", 20, "--save", ours)
        call("digits on the CPU: ", "run", small, "--updates", 20, "--compare", ours, JAX_PLATFORMS="cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", action="store_true", help="run the two programs of an update, and no table")
    parser.add_argument("--torch", default=None)
    parser.add_argument("--minutes", type=float, default=10.0, help="when to end, with what is measured by then")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    sizes, ends = SMALL if options.small else LARGE, time.monotonic() + 60 * options.minutes
    if not options.first:
        fill_table(sizes, options.torch, ends)
        return
    try:
        run_first(sizes, ends)
    except subprocess.TimeoutExpired:
        print("the time is up")


if __name__ == "__main__":
    main()
