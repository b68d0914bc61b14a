"""What a checkpoint after every update costs: time of an update, resident memory, and how long training waits.

    .venv/bin/python benchmarks/checkpointing.py [--rounds 5] [--updates 60] [overrides ...]

Runs job=train by turns with checkpoint.every=1 and with no checkpoint but the first and the last, each in a process of
its own. Prints for each pair examples per second and peak resident memory with checkpoints and without, and the
seconds that training has waited for a checkpoint, median and longest; then the medians of the ratios. Without
overrides it measures RevNet-38 on digits.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from accumtrain.process.program import own_program


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("overrides", nargs="*")
    asked = parser.parse_args()
    speeds, residents = [], []
    with tempfile.TemporaryDirectory(prefix="accumtrain-checkpointing-") as name:
        for number in range(asked.rounds):
            pair = {}
            for every in (1, asked.updates) if number % 2 else (asked.updates, 1):
                pair[every] = train(Path(name) / f"{number}-{every}", every, asked.updates, asked.overrides)
            often, seldom = pair[1], pair[asked.updates]
            speeds.append(often["examples_per_second"] / seldom["examples_per_second"])
            residents.append(often["memory"]["rss_peak_bytes"] / seldom["memory"]["rss_peak_bytes"])
            waited = often["checkpoints"]["seconds_waited"]
            print(
                f"round {number + 1}: {often['examples_per_second']:.4g} and {seldom['examples_per_second']:.4g} "
                f"examples/s ({speeds[-1]:.4f}), resident {often['memory']['rss_peak_bytes'] / 2**20:.0f} and "
                f"{seldom['memory']['rss_peak_bytes'] / 2**20:.0f} MB ({residents[-1]:.4f}), waited "
                f"{1e3 * waited['median']:.1f} ms, at most {1e3 * waited['most']:.1f} ms",
                flush=True,
            )
    print(f"with over without: speed {statistics.median(speeds):.4f}, memory {statistics.median(residents):.4f}")


def train(folder: Path, every: int, updates: int, overrides: list[str]) -> dict[str, Any]:
    """Trains and returns the summary."""
    keys = [f"train.steps={updates}", f"eval.every={updates}", f"log.every={updates}", f"checkpoint.every={every}"]
    command = [*own_program(), *overrides, *keys, f"run.dir={folder}", "run.name=run"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    summary: dict[str, Any] = json.loads((folder / "run/summary.json").read_text())
    return summary


if __name__ == "__main__":
    main()
