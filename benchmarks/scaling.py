"""How time and memory grow with micro-batch, window, depth and image size, as a picture (about six minutes).

    .venv/bin/python benchmarks/scaling.py [--output docs/scaling.png]

RevNet-38, reversed, recomputed and stored, and ResNet-32, which has as many parameters; float32, Adafactor. Each curve
is a process of its own and starts at its smallest point; one that runs out of memory ends there. A point is the median
of some micro-steps without a commit; those of accum.steps are whole updates, whose commit a longer window shares out.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot, ticker
from workbench import Table, compose

if TYPE_CHECKING:
    from micro_step import Measured, MicroStep  # imports TensorFlow, which only the children need

HERE = Path(__file__).parent
CHILD = "import sys, scaling; scaling.child(*sys.argv[1:])"
OUT_OF_MEMORY = 6  # exit code, as of the command line
WARM_UP, REPEATS, SECONDS = 2, 3, 0.5  # of a point: untimed, then at least so many and for so long
CLASSES = 10


@dataclass(frozen=True)
class Network:
    """A curve. A unit of the first stage has `functions` residual functions; `later` are the units of later stages."""

    model: str
    memory: str
    functions: int
    later: str

    def overrides(self, depth: int | None) -> list[str]:
        units = [f"model.units=[{depth // self.functions},{self.later}]"] if depth else []
        return [f"model={self.model}", f"model.memory={self.memory}", "optim=adafactor", *units]


LINES = {
    "RevNet-38 reversed": Network("revnet38", "reverse", 2, "3,3"),
    "RevNet-38 recomputed": Network("revnet38", "recompute", 2, "3,3"),
    "RevNet-38 stored": Network("revnet38", "store", 2, "3,3"),
    "ResNet-32 stored": Network("resnet32", "store", 1, "5,5"),
}


@dataclass(frozen=True)
class Setting:
    """What is measured.

    accum_steps: of a whole update; None is one micro-step without a commit.
    depth: residual functions in the first stage; None leaves the network as it is.
    """

    micro_batch: int = 4
    accum_steps: int | None = None
    depth: int | None = None
    image_size: int = 32


SWEEPS = {
    "micro_batch": (1, 2, 4, 8, 16, 32),
    "accum_steps": (1, 2, 4, 8, 16, 32),
    "depth": (4, 8, 16, 24),
    "image_size": (32, 64, 128, 224),
}
TITLES = {
    "micro_batch": "micro-batch",
    "accum_steps": "accum.steps",
    "depth": "residual functions in the first stage",
    "image_size": "image size, px",
}


@dataclass(frozen=True)
class Point:
    """Seconds per image, bytes of activations per image, bytes of tensors at the peak (state included)."""

    value: int
    seconds: float
    activations: float
    peak: int


ROWS = {
    "ms per image": lambda point: 1e3 * point.seconds,
    "activations per image, MB": lambda point: point.activations / 2**20,
    "tensors at the peak, MB": lambda point: point.peak / 2**20,
}


def child(line: str, sweep: str) -> None:
    """Prints the points of one curve, one JSON object a line; exits with OUT_OF_MEMORY at the first that needs more."""
    from micro_step import tf  # before anything else imports TensorFlow

    for value in SWEEPS[sweep]:
        try:
            point = measure(line, value, replace(Setting(), **{sweep: value}))
        except tf.errors.ResourceExhaustedError:
            sys.exit(OUT_OF_MEMORY)
        print(json.dumps(asdict(point)), flush=True)


def measure(line: str, value: int, setting: Setting) -> Point:
    from accumtrain.train.memory import state_bytes

    run = network(line, setting.depth, setting.image_size)

    def once() -> "Measured":
        if setting.accum_steps is None:
            return run.run(setting.micro_batch)
        return run.update(setting.micro_batch, setting.accum_steps)

    for _ in range(WARM_UP):
        once()
    found: list[Measured] = []
    while len(found) < REPEATS or sum(each.seconds for each in found) < SECONDS:
        found.append(once())
    seconds, activations = statistics.median(each.seconds for each in found), max(each.bytes for each in found)
    images = setting.micro_batch * (setting.accum_steps or 1)
    state = sum(state_bytes(run.window).values())
    return Point(value, seconds / images, activations / setting.micro_batch, state + activations)


@lru_cache(maxsize=1)  # neighbouring points of micro_batch and accum_steps share it
def network(line: str, depth: int | None, image_size: int) -> "MicroStep":
    from micro_step import Images, MicroStep

    return MicroStep(compose(*LINES[line].overrides(depth)), Images((image_size, image_size, 3), CLASSES))


def curve(line: str, sweep: str) -> Iterator[Point]:
    """The points of one curve as its process finds them."""
    command = [sys.executable, "-c", CHILD, line, sweep]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=HERE) as process:
        assert process.stdout is not None
        found = 0
        for text in process.stdout:
            found += 1
            yield Point(**json.loads(text))
    if process.returncode in (OUT_OF_MEMORY, -signal.SIGKILL):
        print(f"  {line}: out of memory at {SWEEPS[sweep][found]}, left out", flush=True)
    elif process.returncode != 0:
        raise SystemExit(f"{line}, {sweep}: the process ended with code {process.returncode}")


def draw(curves: dict[str, dict[str, list[Point]]], path: Path) -> None:
    """One column per sweep, one row per quantity."""
    figure, axes = pyplot.subplots(
        len(ROWS), len(curves), figsize=(14, 8.5), sharex="col", sharey="row", layout="constrained"
    )
    for column, (sweep, lines) in zip(axes.T, curves.items(), strict=True):
        for axis, quantity in zip(column, ROWS.values(), strict=True):
            for line, points in lines.items():
                axis.plot([p.value for p in points], [quantity(p) for p in points], marker=".", label=line)
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter("{x:g}")
            axis.yaxis.set_minor_formatter(ticker.NullFormatter())
            axis.set_xticks(SWEEPS[sweep], [str(value) for value in SWEEPS[sweep]])
            axis.grid(alpha=0.3)
        column[-1].set_xlabel(TITLES[sweep])
    for axis, name in zip(axes[:, 0], ROWS, strict=True):
        axis.set_ylabel(name)
    axes[0, 0].legend(fontsize="small")
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def main(output: Path) -> None:
    curves: dict[str, dict[str, list[Point]]] = {}
    for sweep in SWEEPS:
        table = Table("curve", TITLES[sweep], *ROWS)
        curves[sweep] = {line: [] for line in LINES}
        for line, points in curves[sweep].items():
            for point in curve(line, sweep):
                points.append(point)
                table.row(line, point.value, *(f"{quantity(point):.2f}" for quantity in ROWS.values()))
    draw(curves, output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=HERE.parent / "docs" / "scaling.png")
    main(parser.parse_args().output)
