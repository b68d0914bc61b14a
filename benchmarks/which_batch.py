"""Does job=batch rank three batches as whole trainings do? Images, texts and a table of numbers (a quarter of an hour).

    taskset -c 0 .venv/bin/python benchmarks/which_batch.py
    .venv/bin/python benchmarks/which_batch.py --scale 0.25 --tasks images      # a shorter trial
    .venv/bin/python benchmarks/which_batch.py --scale 4 --tasks numbers        # until no batch is better

The batches are a quarter of B, B, and four times B. A whole training learns from the same examples with each. job=batch
warms up over 5 % of them, at B, and its branches take the next 15 %. Each rate is that of B times the root of the
ratio. Adam's second moment has one half-life in examples.

The whole trainings warm up over the same 5 %, each with its own batch. Then their rate is constant up to 80 %, as it is
in the branches. In the last 20 % it falls to 0, as in most real trainings. So one training gives a loss at a constant
rate, and one at the end.

A cell is the mean held-out loss of two seeds, with their difference in brackets. The seeds of the branches share their
first weights, those of the trainings do not. The last row of a task counts pairs of batches whose order is that of the
branches. A pair counts where its difference is above the spread, in the branches and in the trainings.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from debian_texts import fetch_texts, write_texts
from workbench import Table, run_quietly

from accumtrain.runs.contents import measured, read_records

WARMUP, BRANCHES, CONSTANT = 0.05, 0.15, 0.8  # shares of the examples; the last is where the rate begins to fall
EVALUATIONS = 20  # of a training, at even distances; each share above is a multiple
SEEDS = (0, 1)
AT = {f"training, {share:.0%}": share for share in (WARMUP + BRANCHES, CONSTANT, 1.0)}
ALL = ("optim=adam", "device=cpu", "train.monitor=loss", "checkpoint.every=1000000")

Losses = dict[int, list[float]]  # by batch, one for each seed


class Task(NamedTuple):
    """What is learned, the middle batch and its rate, the half-life, and the examples of a training."""

    overrides: str
    batch: int
    rate: float
    half_life: int
    examples: int

    @property
    def batches(self) -> tuple[int, int, int]:
        return self.batch // 4, self.batch, self.batch * 4


REVNET = "model=revnet38 model.units=[2,2,2] model.filters=[16,16,32,56]"
DIGITS = "data=digits data.val_fraction=0.3"
DECODER = "task=next_token model=decoder_tiny model.depth=2 model.width=32"
ROWS = "data=table data.path={}/chapters.jsonl data.text_column=text data.length=64"
REGRESSION = "task=regress model=mlp model.width=64"
NUMBERS = "data=table data.path={}/numbers.csv data.number_columns=[*] data.label_column=y"
TASKS = {
    "images": Task(f"{REVNET} {DIGITS}", batch=64, rate=0.003, half_life=44_000, examples=30_720),
    "texts": Task(
        f"{DECODER} {ROWS} data.test_fraction=0.005 data.val_fraction=0.01",
        batch=16,
        rate=0.006,
        half_life=70_000,  # tokens
        examples=15_360,
    ),
    "numbers": Task(
        f"{REGRESSION} {NUMBERS} data.test_fraction=0.02 data.val_fraction=0.2",
        batch=64,
        rate=0.003,
        half_life=44_000,
        examples=102_400,
    ),
}


def write_numbers(file: Path) -> None:
    """Write a table of 8 numbers a row, and of a target of which half the variance is noise."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=[12_500, 8])
    y = np.sin(2 * x[:, 0]) + 0.7 * x[:, 1] * x[:, 2] + rng.normal(size=len(x))
    head = ",".join([*(f"x{column}" for column in range(x.shape[1])), "y"])
    np.savetxt(file, np.column_stack([x, y]), fmt="%.5f", delimiter=",", header=head, comments="")


def run_branches(task: Task, folder: Path) -> Losses:
    """Return the losses after the branches of job=batch."""
    result = run_quietly(
        *(*ALL, *task.overrides.format(folder).split(), "schedule=constant", "job=batch", "accum.steps=1"),
        *(f"batch_size={task.batch}", f"optim.lr={task.rate}", f"optim.half_life={task.half_life}"),
        f"batch_test.warmup={round(WARMUP * task.examples / task.batch)}",
        f"batch_test.examples={round(BRANCHES * task.examples)}",
        *(f"batch_test.seeds={len(SEEDS)}", f"run.seed={SEEDS[0]}", f"run.dir={folder}", "run.name=branches"),
    )
    return {row["batch"]: list(row["losses"]) for row in result["batches"]}


def train(task: Task, batch: int, seed: int, folder: Path) -> list[float]:
    """Return the losses of a whole training, at the shares of AT."""
    updates = task.examples // batch
    run_quietly(
        *(*ALL, *task.overrides.format(folder).split(), f"batch_size={batch}", f"train.steps={updates}"),
        f"accum.steps={max(1, batch // task.batch)}",
        *(f"optim.lr={task.rate * (batch / task.batch) ** 0.5:.4g}", f"optim.half_life={task.half_life}"),
        *("schedule=wsd", f"schedule.warmup={round(WARMUP * updates)}", f"schedule.decay={1 - CONSTANT:.1f}"),
        *(f"eval.every={updates // EVALUATIONS}", "log.every=1000000", f"run.seed={seed}"),
        *(f"run.dir={folder}", f"run.name=batch{batch}-seed{seed}"),
    )
    records = measured(read_records(folder / f"batch{batch}-seed{seed}"))
    losses = {record["step"]: record["loss"] for record in records if record["split"] == "val"}
    return [losses[round(share * updates)] for share in AT.values()]


def compare(task: str, scale: float, table: Table) -> None:
    """Add the rows of a task."""
    started = time.perf_counter()
    chosen = TASKS[task]
    unit = EVALUATIONS * chosen.batches[-1]
    chosen = chosen._replace(examples=max(1, round(scale * chosen.examples / unit)) * unit)
    with tempfile.TemporaryDirectory() as scratch:
        write_inputs(task, Path(scratch))
        branches = run_branches(chosen, Path(scratch))
        found = {batch: [train(chosen, batch, seed, Path(scratch)) for seed in SEEDS] for batch in chosen.batches}
    trainings: list[Losses] = [
        {batch: [losses[place] for losses in seeds] for batch, seeds in found.items()} for place in range(len(AT))
    ]
    for batch in chosen.batches:
        table.row(task, batch, *(show(losses[batch]) for losses in (branches, *trainings)))
    seconds = f"{time.perf_counter() - started:.0f} s"
    table.row(task, "same order", seconds, *(count_same(branches, losses) for losses in trainings))


def write_inputs(task: str, folder: Path) -> None:
    if task == "texts":
        write_texts(fetch_texts("book"), folder / "chapters.jsonl")
    if task == "numbers":
        write_numbers(folder / "numbers.csv")


def show(losses: list[float]) -> str:
    return f"{statistics.fmean(losses):.4f} ({max(losses) - min(losses):.4f})"


def count_same(branches: Losses, training: Losses) -> str:
    """Return how many pairs of batches have the same order, of those with a clear difference in both."""
    clear = [
        (one, other)
        for pair in combinations(branches, 2)
        if (one := find_sign(branches, *pair)) and (other := find_sign(training, *pair))
    ]
    return f"{sum(one == other for one, other in clear)} of {len(clear)}"


def find_sign(losses: Losses, one: int, other: int) -> int:
    """Return the sign of a difference of two batches, or 0 where it is not above the spread of either."""
    difference = statistics.fmean(losses[one]) - statistics.fmean(losses[other])
    spread = max(max(losses[batch]) - min(losses[batch]) for batch in (one, other))
    return 0 if abs(difference) <= spread else int(np.sign(difference))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="of the examples of all trainings")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    options = parser.parse_args()
    table = Table("held-out loss", "batch", "branches", *AT)
    for task in options.tasks:
        compare(task, options.scale, table)


if __name__ == "__main__":
    main()
