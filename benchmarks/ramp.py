"""A batch that grows during a training, beside its first and its last batch: three small tasks (ten minutes).

    taskset -c 0 .venv/bin/python benchmarks/ramp.py
    .venv/bin/python benchmarks/ramp.py --scale 0.25 --seeds 1 --tasks images    # a shorter trial

The ramp has four times its first batch from a quarter of the examples on, and its last batch from the half on. All runs
have its micro-batch, so they need the same memory. Adam's second moment has one half-life in examples. The warm-up is
5 % of the examples.

The rate of the last batch is that of the first, times the root of their ratio. The ramp keeps the rate of its first
batch. This rate is constant, as a growing batch is to do what a falling rate does. Two more runs have one batch and a
rate that falls as a cosine.

Losses are means of held-out examples after the last update, with the spread of the seeds in brackets. Seconds are of
training: examples by examples per second, without the start, compiling and evaluations. The runs take turns, seed by
seed. The seconds of a run are those of its fastest seed, as other programs only make it slower.

`in time` is the loss when the ramp has ended, on straight lines between evaluations. The last batch trains on for it,
up to half as many examples more. A falling rate has no such loss, as it would have fallen faster.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import which_batch
from which_batch import DIGITS, WARMUP, Task, show, write_inputs
from workbench import Table, run_quietly

from accumtrain.runs.contents import measured, read_records

RAMP = {0.25: 4, 0.5: 16}  # how many times the first batch, from each share of the examples on
MORE = 1.5  # times the examples for the last batch
EVALUATIONS = 10  # of a run at a constant rate, in the examples of its task
LENET = f"model=lenet5 {DIGITS}"
TASKS = {  # with the first batch and its rate
    "texts": which_batch.TASKS["texts"]._replace(batch=4, rate=0.003, examples=10_240),
    "images": which_batch.TASKS["images"]._replace(overrides=LENET, batch=16, rate=0.001),
    "numbers": which_batch.TASKS["numbers"]._replace(batch=16, rate=0.0015),
}


class Run(NamedTuple):
    """A row of the table.

    Attributes:
        batch: the first, if it grows.
        updates: for the examples of the task.
        more: times as many updates are made.
    """

    name: str
    batch: int
    rate: float
    updates: int
    overrides: str = "schedule=constant"
    more: float = 1.0

    @property
    def falls(self) -> bool:
        return "cosine" in self.overrides


class Curve(NamedTuple):
    """The evaluations of a run: the updates and the seconds before each, and the held-out loss."""

    updates: list[int]
    seconds: list[float]
    losses: list[float]


def list_runs(task: Task) -> list[Run]:
    """Return the ramp first, then one batch, then one batch with a rate that falls."""
    sizes = [task.batch, *(times * task.batch for times in RAMP.values())]
    lengths = np.diff([0, *RAMP, 1])
    updates = sum(round(length * task.examples / size) for length, size in zip(lengths, sizes, strict=True))
    keys = ",".join(f"{share}:{times * task.batch}" for share, times in RAMP.items())
    name = ", then ".join(map(str, sizes))
    runs = [Run(name, task.batch, task.rate, updates, f"schedule=constant batch_ramp={{{keys}}}")]
    ends = [(size, task.rate * (size / task.batch) ** 0.5, task.examples // size) for size in (sizes[0], sizes[-1])]
    runs += [Run(str(size), size, rate, count) for size, rate, count in ends]
    runs[-1] = runs[-1]._replace(more=MORE)
    return runs + [Run(f"{size}, rate falls", size, rate, count, "schedule=cosine") for size, rate, count in ends]


def train(task: Task, run: Run, seed: int, folder: Path) -> Curve:
    """Return the curve of a run."""
    name = f"{run.name.replace(', ', '-').replace(' ', '-')}-seed{seed}"
    every = run.updates // EVALUATIONS
    summary = run_quietly(
        *(*which_batch.ALL, *task.overrides.format(folder).split(), *run.overrides.split()),
        *(f"batch_size={run.batch}", f"accum.steps={run.batch // task.batch}", f"optim.lr={run.rate:.4g}"),
        f"optim.half_life={task.half_life}",
        f"train.steps={round(run.more * run.updates)}",
        f"schedule.warmup={round(WARMUP * task.examples / run.batch)}",
        f"eval.every={run.updates if run.falls else every}",
        *(f"log.every={every}", f"run.seed={seed}", f"run.dir={folder}", f"run.name={name}"),
    )
    return read_curve(folder / name, summary["data"]["data.train.examples"])


def read_curve(folder: Path, epoch: int) -> Curve:
    """Return the curve of a run whose epochs have so many examples."""
    curve, made, seconds = Curve([], [], []), 0.0, 0.0
    for record in measured(read_records(folder)):
        speed = record.get("examples_per_second")
        if record["split"] == "train" and speed:  # before the first speed nothing is timed
            seconds += (record["epoch"] * epoch - made) / speed
            made = record["epoch"] * epoch
        if record["split"] == "val":
            curve.updates.append(record["step"])
            curve.seconds.append(seconds)
            curve.losses.append(record["loss"])
    return curve


def compare(name: str, scale: float, seeds: int, table: Table) -> None:
    """Add the rows of a task."""
    task = TASKS[name]
    unit = EVALUATIONS * task.batch * max(RAMP.values())
    task = task._replace(examples=max(1, round(scale * task.examples / unit)) * unit)
    runs = list_runs(task)
    with tempfile.TemporaryDirectory() as scratch:
        write_inputs(name, Path(scratch))
        turns = [[train(task, run, seed, Path(scratch)) for run in runs] for seed in range(seeds)]
    curves = dict(zip(runs, zip(*turns, strict=True), strict=True))
    end = min(curve.seconds[-1] for curve in curves[runs[0]])  # of the ramp
    for run, each in curves.items():
        fastest = min(each, key=lambda curve: curve.seconds[-1])
        at_end = fastest.updates.index(run.updates)
        in_time = [float(np.interp(end, fastest.seconds, curve.losses)) for curve in each]
        table.row(
            *(name, run.name, f"{run.rate:.3g}", run.updates, show([curve.losses[at_end] for curve in each])),
            *(f"{fastest.seconds[at_end]:.1f}", "" if run.falls else show(in_time)),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="of the examples of all runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    options = parser.parse_args()
    table = Table("task", "batch", "rate", "updates", "loss", "seconds", "in time")
    for name in options.tasks:
        compare(name, options.scale, options.seeds, table)


if __name__ == "__main__":
    main()
