"""Loss of a small decoder against the batch, by optimizer and rate, with the same tokens in each run (two hours).

    taskset -c 1 .venv/bin/python benchmarks/batch_sizes.py --out losses.jsonl --picture losses.png

It repeats the central figure of Marek et al. 2025 (arXiv:2507.07101) at a small scale. The text is the book of
debian_texts.py, its tokens are bytes, and a batch is a number of packed rows. Losses are nats per byte of held-out
chapters after the last update. `--out` grows by a line for each run. The same command goes on where it was cut.

beta2 is 0.95, a usual value of language models, at each batch or at one. From there it follows the half-life: the
second moment forgets half after the same number of tokens. So beta2 = 0.95^(batch / 16), or 0.95^(batch / 256). The
beta1 of Adam is 0.9.

Rates are a grid by factors of 3. Its middle is scaled by the root of the batch. It grows where the best rate is at its
border. Warm-up and cosine are the same shares of each run.
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
BETA2 = 0.95
FACTOR, AT = 3, 16  # between neighbouring rates, and the batch at which the middle of their grid is known
MORE_RATES = 2  # most rates that are added at the border of the grid
DECODER = "model=decoder_tiny model.depth=2 model.width=64"
DATA = f"data=table data.text_column=text data.length={LENGTH} data.test_fraction=0.03 data.val_fraction=0.005"
AT_THE_END = "eval.every=1000000 checkpoint.every=1000000 log.every=1000000"
RUN = (*DECODER.split(), *DATA.split(), *AT_THE_END.split(), "task=next_token", "schedule=cosine", "device=cpu")


class Rule(NamedTuple):
    """An optimizer: its overrides, the rate in the middle of the grid at batch AT, and its line in the picture.

    If `from_batch` is given, beta2 is BETA2 there, and has the same half-life in tokens at each other batch.
    """

    overrides: str
    rate: float
    style: str
    from_batch: int | None = None

    def at_batch(self, batch: int) -> str:
        """Return the overrides for a batch."""
        if self.from_batch is None:
            return self.overrides
        return f"{self.overrides} optim.beta2={BETA2 ** (batch / self.from_batch):.6g}"


ADAM, ADAFACTOR = "optim=adam", "optim=adafactor optim.weight_decay=0"
FIXED, BY_TOKENS = "Adam, beta2 0.95", "Adam, half-life of 0.95 at 16"  # whose rates are drawn
RULES = {
    FIXED: Rule(f"{ADAM} optim.beta2={BETA2}", 0.006, "-C0o"),
    BY_TOKENS: Rule(ADAM, 0.006, "-C1o", from_batch=16),
    "Adam, half-life of 0.95 at 256": Rule(ADAM, 0.006, "-C5o", from_batch=256),
    "Adafactor, beta2 grows": Rule(ADAFACTOR, 0.03, "--C2s"),
    "Adafactor, half-life of 0.95 at 16": Rule(ADAFACTOR, 0.03, "--C3s", from_batch=16),
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
        lengths = f"train.steps={updates} schedule.warmup={math.ceil(WARMUP * updates)}"
        overrides = f"{rule.at_batch(batch)} optim.lr={rate:.3g} batch_size={batch} {lengths}"
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
    middle = rule.rate * math.sqrt(batch / AT)
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
    for name, dashes in ((FIXED, "--"), (BY_TOKENS, "-")):
        for number, (batch, rates) in enumerate(found[name].items()):
            label = f"batch {batch}" if dashes == "-" else None
            by_rate.plot(list(rates), list(rates.values()), f"{dashes}C{number}o", label=label, ms=4)
    by_batch.set_xscale("log", base=2)
    by_batch.set(xlabel="rows in a batch", ylabel="nats per byte, best rate", xticks=BATCHES)
    by_batch.set_xticklabels(map(str, BATCHES))
    by_rate.set_xscale("log")
    by_rate.set(xlabel="rate", ylabel="nats per byte", title=f"dashed: {FIXED}; solid: {BY_TOKENS}")
    by_rate.title.set_fontsize("small")
    for axes in (by_batch, by_rate):
        axes.grid(alpha=0.3)
    by_batch.legend(fontsize="small")
    by_rate.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
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
