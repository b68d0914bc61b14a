"""What a checkpoint after every update costs: time of an update, how long training waits, resident memory.

    .venv/bin/python benchmarks/checkpointing.py [--updates 100] [--rounds 3] [overrides ...]

Time: one training with checkpoint.every=2. While every other update is made, a thread writes the checkpoint of the one
before; nothing is written during the others. Printed is the median of the ratios of neighbours, with the range that
holds the true median in 19 of 20 cases, and the seconds that updates waited for the writer. Memory: peak resident
memory of `rounds` trainings with checkpoint.every=1, over that of trainings whose only checkpoints are the first and
the last. Without overrides it measures RevNet-38 on digits.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from composed import compose

from accumtrain.process import environment
from accumtrain.process.interrupt import StopSignals
from accumtrain.process.program import own_program

WARM_UP = 10  # updates that are not looked at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("overrides", nargs="*")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="accumtrain-checkpointing-") as name:
        # first, before this process holds TensorFlow, too
        show_memory(Path(name), asked.updates, asked.rounds, asked.overrides)
        show_time(Path(name) / "time", asked.updates, asked.overrides)


def show_time(folder: Path, updates: int, overrides: list[str]) -> None:
    total = WARM_UP + updates
    config = compose(*overrides, *sparse(total), "checkpoint.every=2", "log.every=1", f"run.dir={folder}")
    environment.prepare(config.device)
    from accumtrain.jobs.train import Training  # now, as it imports TensorFlow

    class TimedTraining(Training):
        """A training that notes when each update is done."""

        def run(self) -> dict[str, Any] | None:
            self.ends: list[float] = []
            return super().run()

        def _report(self, update: dict[str, float], count: int) -> None:
            super()._report(update, count)
            self.ends.append(time.perf_counter())

    with StopSignals(), TimedTraining.opened(config) as training:
        training.run()
    seconds = [end - begin for begin, end in zip(training.ends, training.ends[1:], strict=False)]  # [0]: update 2
    beside, alone = seconds[WARM_UP - 1 :: 2], seconds[WARM_UP::2]  # updates 11, 13, ... and 12, 14, ...
    ratios = sorted(one / other for one, other in zip(beside, alone, strict=False))
    pairs = len(ratios)
    margin = round(0.98 * pairs**0.5)  # of ranks about the median, by the binomial distribution
    low, high = ratios[max(0, pairs // 2 - margin)], ratios[min(pairs - 1, pairs // 2 + margin)]
    pauses = training.checkpoints.pauses
    print(
        f"time of an update with a checkpoint over without: {statistics.median(ratios):.4f} ({low:.4f} to {high:.4f}; "
        f"{pairs} pairs, median {1e3 * statistics.median(alone):.4g} ms without); waited "
        f"{1e3 * statistics.median(pauses):.2f} ms, at most {1e3 * max(pauses):.1f} ms, "
        f"of {len(pauses)} checkpoints",
        flush=True,
    )


def show_memory(folder: Path, updates: int, rounds: int, overrides: list[str]) -> None:
    ratios = []
    for number in range(rounds):
        peaks = {}
        for every in (1, updates) if number % 2 else (updates, 1):
            keys = [*overrides, *sparse(updates), f"checkpoint.every={every}", f"run.dir={folder}"]
            subprocess.run([*own_program(), *keys, f"run.name={number}-{every}"], check=True, stdout=subprocess.DEVNULL)
            summary = json.loads((folder / f"{number}-{every}/summary.json").read_text())
            peaks[every] = summary["memory"]["rss_peak_bytes"]
        ratios.append(peaks[1] / peaks[updates])
        print(f"resident {peaks[1] / 2**20:.0f} and {peaks[updates] / 2**20:.0f} MB ({ratios[-1]:.4f})", flush=True)
    if ratios:
        print(f"resident memory with checkpoints over without: {statistics.median(ratios):.4f}")


def sparse(updates: int) -> list[str]:
    """Overrides of a training of so many updates, with one evaluation at its end."""
    return [f"train.steps={updates}", f"eval.every={updates}", f"log.every={updates}"]


if __name__ == "__main__":
    main()
