"""Loss of a small decoder against the batch, by optimizer and rate, with the same tokens in each run (two hours).

    taskset -c 1 .venv/bin/python benchmarks/batch_sizes.py --out losses.jsonl --picture losses.png

It repeats the central figure of Marek et al. 2025 (arXiv:2507.07101) at a small scale. The text is the book of
debian_texts.py, its tokens are bytes, and a batch is a number of packed rows. Losses are nats per byte of held-out
chapters after the last update. `--out` grows by a line for each run. The same command goes on where it was cut.

"Half-life" says that the second moment forgets half after the same number of tokens, whatever the batch is:
beta2 = 0.95^(batch / 16). Rates are a grid by factors of 3. Its middle is scaled by the root of the batch, and it grows
where the best rate is at its border. Warm-up and cosine are the same shares of each run.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
from debian_texts import fetch_texts, write_texts
from matplotlib import pyplot
from workbench import Table, compose

import accumtrain
from accumtrain.errors import DivergedError

BATCHES = (1, 4, 16, 64, 256)
ROWS, LENGTH = 24_576, 64  # of training, and tokens of a row
WARMUP = 0.05  # of the run
USUAL_BATCH, USUAL_BETA2 = 16, 0.95  # the value of many language models, here at this batch
FACTOR = 3  # between neighbouring rates
MORE_RATES = 2  # most rates that are added at the border of the grid
DECODER = "model=decoder_tiny model.depth=2 model.width=64"
DATA = f"data=table data.text_column=text data.length={LENGTH} data.test_fraction=0.03 data.val_fraction=0.005"
AT_THE_END = "eval.every=1000000 checkpoint.every=1000000 log.every=1000000"
RUN = (*DECODER.split(), *DATA.split(), *AT_THE_END.split(), "task=next_token", "schedule=cosine", "device=cpu")


class Rule(NamedTuple):
    """An optimizer: its overrides, the rate in the middle of the grid at USUAL_BATCH, its line in the picture."""

    overrides: str
    rate: float
    style: str


ADAM, ADAFACTOR = "optim=adam", "optim=adafactor optim.weight_decay=0"
BETA2, HALF_LIFE = f"optim.beta2={USUAL_BETA2}", "optim.beta2={half_life}"
RULES = {
    "Adam, fixed beta2": Rule(f"{ADAM} {BETA2}", 0.006, "-C0o"),
    "Adam, fixed half-life": Rule(f"{ADAM} {HALF_LIFE}", 0.006, "-C1o"),
    "Adafactor, growing beta2": Rule(ADAFACTOR, 0.03, "--C2s"),
    "Adafactor, fixed half-life": Rule(f"{ADAFACTOR} {HALF_LIFE}", 0.03, "--C3s"),
    "SGD without momentum": Rule("optim=sgd optim.momentum=0 optim.weight_decay=0", 0.3, ":C4^"),
}


class Losses:
    """The losses of runs, each measured once: those of earlier calls are read from a file of JSON lines."""

    def __init__(self, file: Path, texts: Path, runs: Path):
        self._file, self._texts, self._runs = file, texts, runs
        lines = file.read_text().splitlines() if file.exists() else []
        self._known = {line["overrides"]: line["loss"] for line in map(json.loads, lines)}

    def measure(self, rule: Rule, batch: int, rate: float) -> float:
        """Return the held-out loss after the last update, infinite if the run diverged."""
        updates = ROWS // batch
        optimizer = rule.overrides.format(half_life=f"{USUAL_BETA2 ** (batch / USUAL_BATCH):.6g}")
        lengths = f"train.steps={updates} schedule.warmup={math.ceil(WARMUP * updates)}"
        overrides = f"{optimizer} optim.lr={rate:.3g} batch_size={batch} {lengths}"
        if overrides not in self._known:
            started = time.perf_counter()
            self._known[overrides] = self._train(*overrides.split())
            seconds = round(time.perf_counter() - started, 1)
            line = {"overrides": overrides, "loss": self._known[overrides], "seconds": seconds}
            with self._file.open("a") as file:
                file.write(json.dumps(line) + "\n")
        loss = self._known[overrides]
        return math.inf if loss is None else loss

    def _train(self, *overrides: str) -> float | None:
        """Return the loss of a run in this process, None if it diverged. Its folder is left to `self._runs`."""
        place = (f"data.path={self._texts}", f"run.dir={self._runs}", f"run.name={len(self._known)}")
        config = compose(*RUN, "accum.steps=1", *place, *overrides)
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            try:
                summary = accumtrain.run(config)
            except DivergedError:
                return None
        assert summary is not None
        return summary["test"]["loss"]


def try_rates(losses: Losses, rule: Rule, batch: int) -> dict[float, float]:
    """Return losses by rate, of a grid that has its best rate inside if MORE_RATES let it."""
    middle = rule.rate * math.sqrt(batch / USUAL_BATCH)
    rates = [middle / FACTOR, middle, middle * FACTOR]
    found = {rate: losses.measure(rule, batch, rate) for rate in rates}
    for _ in range(MORE_RATES):
        best = min(found, key=found.__getitem__)
        if min(found) < best < max(found):
            break
        rate = best / FACTOR if best == min(found) else best * FACTOR
        found[rate] = losses.measure(rule, batch, rate)
    return dict(sorted(found.items()))


Found = dict[str, dict[int, dict[float, float]]]  # rule -> batch -> rate -> loss


def show_table(found: Found) -> None:
    """Print the best loss of each optimizer and batch, and its rate."""
    table = Table("nats per byte (rate)", *(f"batch {batch}" for batch in BATCHES))
    for name, batches in found.items():
        best = [min(rates.items(), key=lambda item: item[1]) for rates in batches.values()]
        table.row(name, *(f"{loss:.4f} ({rate:.2g})" for rate, loss in best))


def draw(found: Found, path: Path) -> None:
    """Draw the best loss against the batch, and the loss of Adam against the rate."""
    figure, (by_batch, by_rate) = pyplot.subplots(1, 2, figsize=(12, 4.4), layout="constrained", facecolor="white")
    for name, batches in found.items():
        by_batch.plot(list(batches), [min(rates.values()) for rates in batches.values()], RULES[name].style, label=name)
    for name, dashes in (("Adam, fixed beta2", "--"), ("Adam, fixed half-life", "-")):
        for number, (batch, rates) in enumerate(found[name].items()):
            by_rate.plot(list(rates), list(rates.values()), f"{dashes}C{number}o", label=f"{name}, batch {batch}", ms=4)
    by_batch.set_xscale("log", base=2)
    by_batch.set(xlabel="rows in a batch", ylabel="nats per byte, best rate", xticks=BATCHES)
    by_batch.set_xticklabels(map(str, BATCHES))
    by_rate.set_xscale("log")
    by_rate.set(xlabel="rate", ylabel="nats per byte")
    for axes in (by_batch, by_rate):
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
    figure.suptitle(f"{ROWS * LENGTH:,} bytes of a book, in each run")
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("batch_sizes.jsonl"), help="the losses of all runs")
    parser.add_argument("--picture", type=Path, default=Path("batch_sizes.png"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        texts = Path(scratch) / "chapters.jsonl"
        write_texts(fetch_texts("book"), texts)
        losses = Losses(options.out, texts, Path(scratch) / "runs")
        found = {name: {batch: try_rates(losses, rule, batch) for batch in BATCHES} for name, rule in RULES.items()}
    show_table(found)
    draw(found, options.picture)


if __name__ == "__main__":
    main()
