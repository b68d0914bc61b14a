"""Accuracy on Fashion-MNIST over several seeds, with memory and time, and the page docs/results.md (two hours).

    .venv/bin/python benchmarks/results.py --output docs/results.md
    .venv/bin/python benchmarks/results.py --only lenet5-4x32 --seeds 0 --epochs 1
    .venv/bin/python benchmarks/results.py --show --output docs/results.md      # runs nothing

Each run is an `accumtrain` command in a process of its own, whose folder stays in --runs. A run that is complete is not
made again, and one that was stopped goes on. The table is printed after each run. It shows the state after the last
update, so that nothing is chosen on the test images. The page also has that of what_fits.py and the papers' recipes.
"""

import argparse
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import what_fits
from workbench import Table

from accumtrain.config.keys import CONF_DIR
from accumtrain.console import format_seconds
from accumtrain.runs.contents import read_summary

DATA = "data=fashion_mnist"
EPOCHS = 5
SEEDS = (0, 1, 2)
UNSEEN = (
    "eval.every=1000000",
    "log.every=100",
)  # change nothing that is learned: test images are read once, at the end
ROWS = {  # name -> overrides
    "lenet5-4x32": "experiment=mnist_lenet5",
    "lenet5-128": "experiment=mnist_lenet5 accum.steps=1",
    "resnet20-adam": "model=resnet20 optim=adam batch_size=128 accum.steps=1",
    "resnet20-adafactor": "model=resnet20 optim=adafactor batch_size=128 accum.steps=1",
    "revnet38-adafactor-stored": "model=revnet38 model.memory=store optim=adafactor batch_size=128 accum.steps=1",
    "revnet38-adafactor": "model=revnet38 optim=adafactor batch_size=128 accum.steps=1",
    "revnet38-adam": "model=revnet38 optim=adam batch_size=128 accum.steps=1",
}
EQUAL = ("revnet38-adafactor-stored", "revnet38-adafactor")  # must end with the same bits
NOT_RUN = "not run"
HEAD = ("run", "test accuracy", "spread", "seeds", "peak, MB", "time")
# the comments that begin a file of conf/experiment
RECIPE = re.compile(r"# (?P<title>.+?)\. Published: (?P<published>.+? %.*?)\.(?: docs/recipes.*)?\n")

Summaries = Mapping[int, dict[str, Any]]  # by seed


class Plan(NamedTuple):
    """The runs that are asked for: the folder that holds them, their length and their seeds; the folder of plans."""

    runs: Path
    epochs: int
    seeds: Sequence[int]
    plans: Path = what_fits.PLANS

    def overrides(self, row: str) -> list[str]:
        """Return what decides the result of a run, but for its seed."""
        return [*ROWS[row].split(), DATA, f"train.epochs={self.epochs}"]

    def settings(self, row: str, seed: int) -> list[str]:
        """Return all of a run but its place."""
        return [*self.overrides(row), *UNSEEN, f"run.seed={seed}"]

    def name(self, row: str, seed: int) -> str:
        return f"{row}-{self.epochs}epochs-seed{seed}"

    def command(self, row: str, seed: int) -> list[str]:
        """Return the words of a run's command."""
        return ["accumtrain", *self.settings(row, seed), f"run.dir={self.runs}", f"run.name={self.name(row, seed)}"]

    def read(self, row: str) -> dict[int, dict[str, Any]]:
        """Return the summaries of the complete runs of a row. Raise SystemExit for a run of another command."""
        found = {}
        for seed in self.seeds:
            folder = self.runs / self.name(row, seed)
            summary = read_summary(folder)
            if summary is None or summary["status"] != "completed":
                continue
            if summary["provenance"]["command"][1:-2] != self.settings(row, seed):
                raise SystemExit(f"{folder} is of another command than {row} is: remove it, or give other --runs")
            found[seed] = summary
        return found


# ---- runs ----


def run_missing(plan: Plan, rows: Sequence[str], output: Path | None) -> None:
    """Make the runs that are not complete, a seed of all rows after the other."""
    for seed in plan.seeds:
        for row in rows:
            if seed in plan.read(row):
                continue
            run_command(plan.command(row, seed))
            show(plan, rows, output)


def run_command(command: Sequence[str]) -> None:
    """Run `accumtrain` with its screen on ours. Raise SystemExit with its exit code, if it has another than 0."""
    print(f"\n{shlex.join(command)}", flush=True)
    process = subprocess.Popen([sys.executable, "-m", *command])
    while True:
        try:
            code = process.wait()
            break
        except KeyboardInterrupt:
            pass  # it was interrupted, too: it saves its state and ends
    if code:
        print("the same command of this benchmark goes on here", file=sys.stderr)
        raise SystemExit(code)


# ---- tables ----


def show(plan: Plan, rows: Sequence[str], output: Path | None) -> None:
    """Print the table of `rows` as it stands, and write the page with all rows."""
    print()
    fill(Table(*HEAD), {row: plan.read(row) for row in rows})
    if output is not None:
        output.write_text(page(plan, {row: plan.read(row) for row in ROWS}))


def fill(table: Table, found: Mapping[str, Summaries]) -> None:
    """Add a row for each row of ROWS in `found`: means over its seeds, but the median of the time.

    The spread is the largest accuracy minus the smallest.
    """
    for row, summaries in found.items():
        if not summaries:
            table.row(row, NOT_RUN, "", 0, "", "")
            continue
        accuracies = [summary["test"]["accuracy"] for summary in summaries.values()]
        peaks = [sum(filter(None, summary["memory_by_kind"].values())) for summary in summaries.values()]
        seconds = statistics.median(summary["seconds"] for summary in summaries.values())
        table.row(
            row,
            f"{statistics.mean(accuracies):.4f}",
            f"{max(accuracies) - min(accuracies):.4f}" if len(accuracies) > 1 else "",
            len(accuracies),
            f"{statistics.mean(peaks) / 2**20:.1f}",
            format_seconds(seconds),
        )


def page(plan: Plan, found: Mapping[str, Summaries]) -> str:
    """Return docs/results.md: what was run here, the command of each row, and the papers' figures."""
    measured = Table(*HEAD, printed=False)
    fill(measured, found)
    return PAGE.format(
        machine=describe_machines(found),
        epochs="1 epoch" if plan.epochs == 1 else f"{plan.epochs} epochs",
        measured="\n".join(measured.lines),
        equal=compare_bits(found),
        commands="\n".join(shlex.join(["accumtrain", *plan.overrides(row)]) for row in ROWS),
        fits="\n".join(what_fits.tabulate_cases(list(what_fits.CASES), plan.plans, printed=False)),
        share=f"{what_fits.SHARE:.0%}".replace("%", " %"),
        plan=shlex.join(what_fits.command_of(next(iter(what_fits.CASES)))),
        published="\n".join(tabulate_recipes()),
    )


def tabulate_recipes() -> list[str]:
    """Return the table of the recipes that have a published figure, in lines."""
    table = Table("recipe", "published", "command", printed=False)
    for file in sorted(CONF_DIR.glob("experiment/*.yaml"), key=by_number):
        recipe = RECIPE.search(file.read_text())
        if recipe is not None:
            published = recipe["published"].replace(" (Gomez et al. 2017)", "")
            table.row(recipe["title"], published, f"`accumtrain experiment={file.stem}`")
    return table.lines


def by_number(file: Path) -> list[str | int]:
    """Return a key that sorts names by the numbers in them, so that 32 stands before 110."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", file.stem)]


def describe_machines(found: Mapping[str, Summaries]) -> str:
    """Return a sentence on where and when the runs were made."""
    facts = [summary["provenance"] for summaries in found.values() for summary in summaries.values()]
    if not facts:
        return "Nothing has been run yet."
    machines = sorted(
        {f"{fact['cpu']['model']}, {fact['device']}, TensorFlow {fact['versions']['tensorflow']}" for fact in facts}
    )
    days = sorted({fact["started"][:10] for fact in facts})
    return f"Run from {days[0]} to {days[-1]} on {'; '.join(machines)}."


def compare_bits(found: Mapping[str, Summaries]) -> str:
    """Return a sentence on the runs of EQUAL, which differ in the memory policy alone."""
    stored, reversed_ = (found[row] for row in EQUAL)
    seeds = sorted(stored.keys() & reversed_.keys())
    if not seeds:
        return f"`{EQUAL[0]}` and `{EQUAL[1]}` must end with the same numbers.\nThat has not been compared yet."
    same = [seed for seed in seeds if stored[seed]["test"] == reversed_[seed]["test"]]
    return (
        f"`{EQUAL[0]}` and `{EQUAL[1]}` differ in `model.memory` alone.\n"
        f"Their test losses are the same to the last digit for {len(same)} of {len(seeds)} seeds."
    )


PAGE = """# Results

`.venv/bin/python benchmarks/results.py --output docs/results.md` makes the runs that are missing, and this page.

## What accuracy does it reach on Fashion-MNIST?

A row is trained on the 60,000 training images for {epochs}, without augmentation. Measured is the state after the last
update, on the 10,000 test images, which have chosen nothing. Accuracy and memory are means over the seeds, time is the
median. The spread is the largest accuracy minus the smallest. Memory is that of all tensors at the peak but for the
stored images.
{machine}

{measured}

{equal}

One command for each row, with `run.seed=1` and so on for the other seeds. The images are those of
[Debian's package](data.md#sources).

```
{commands}
```

[finetune.md](finetune.md#what-accuracy-does-it-reach) has published models on mails and on package descriptions.

## Which micro-batch fits?

The largest micro-batch at 224 pixels in float32, by network, optimizer and memory policy. A limit is of tensors, as
`device.memory_limit_mb` is, and {share} of it is used. The last column is the largest micro-batch that ran, with its
tensors at the peak. A straight line through the two largest that ran gives the other figures, because a peak grows
by the same bytes with each image ([plan.md](plan.md#how-good-are-the-numbers) says how well).
`.venv/bin/python benchmarks/what_fits.py` makes the plans that are missing. One of them:

```
{plan}
```

{fits}

## What do the papers' recipes reach?

None was run here: they need MNIST, CIFAR-10, CIFAR-100 or ImageNet, which were not at hand. Figures are those of Gomez
et al. 2017, and of MindSpore's tutorial for LeNet-5. [recipes.md](recipes.md#the-articles-recipes) says what differs.

{published}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS), metavar="SEED", help="0 1 2 by default")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"{EPOCHS} by default")
    parser.add_argument("--runs", type=Path, default=Path("runs/results"), help="the folder of the runs")
    parser.add_argument("--plans", type=Path, default=what_fits.PLANS, help="the folder of the plans of what_fits.py")
    parser.add_argument("--show", action="store_true", help="run nothing, only show what there is")
    parser.add_argument("--output", type=Path, help="write the page there, after each run")
    options = parser.parse_args()
    plan = Plan(options.runs, options.epochs, options.seeds, options.plans)
    if not options.show:
        run_missing(plan, options.only, options.output)
    show(plan, options.only, options.output)


if __name__ == "__main__":
    main()
