"""Seconds to the first update, and of the processor for the whole job: a first start, and a continued run.

    .venv/bin/python benchmarks/first_update.py --repeats 3                        # about ten minutes
    .venv/bin/python benchmarks/first_update.py --before ../accumtrain-before      # beside another checkout

A continued run begins with the checkpoint of update 0. All train the same update, take turns, and must leave the same
bytes. The micro-batch is small, so that little of the time is training. Processor time is what to compare on a busy
machine; it counts the evaluation, the checkpoints and the end of the process, too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

SMALL = ("data=synthetic", "train.steps=1", "data.train_examples=256", "data.test_examples=8", "eval.every=1")
CASES = {
    "revnet104": ("model=revnet104", "data.image_size=224", "batch_size=4", "accum.steps=1"),
    "resnet20": ("model=resnet20", "data.image_size=32", "batch_size=32", "accum.steps=2"),
}
OURS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Start:
    """Seconds to the first update, of the processor for the whole job; peak memory; a digest of the state."""

    first_update: float
    processor: float
    resident_mb: float
    state: str


def start(case: str, checkout: Path, run: Path) -> Start:
    """Trains one update in a process of its own, with the code of `checkout`, or continues the run to its end."""
    place = (f"run.dir={run.parent}", f"run.name={run.name}")
    command = [sys.executable, "-m", "accumtrain", *CASES[case], *SMALL, *place]
    environment = {**os.environ, "PYTHONPATH": str(checkout.absolute())}
    # python -m looks into the current folder first
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, cwd=checkout.absolute())
    _, code, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(code)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    summary = json.loads((run / "summary.json").read_text())
    (state,) = (run / "checkpoints" / "step-1").glob("state.data*")
    return Start(
        summary["seconds_to_first_update"],
        used.ru_utime + used.ru_stime,
        summary["memory"]["rss_peak_bytes"] / 2**20,
        hashlib.sha256(state.read_bytes()).hexdigest(),
    )


def go_back(run: Path) -> None:
    """Leaves the checkpoint of update 0 alone, as if the run had been stopped then."""
    for later in ("step-1", "best"):
        shutil.rmtree(run / "checkpoints" / later)


def compare(case: str, repeats: int, before: Path | None) -> None:
    """Prints a row for each kind of start: the median of its repeats, and the least, as others share the machine."""
    found: dict[str, list[Start]] = {}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as scratch:
            if before is not None:
                found.setdefault("before", []).append(start(case, before, Path(scratch) / "before"))
            run = Path(scratch) / "run"
            found.setdefault("first", []).append(start(case, OURS, run))
            go_back(run)
            found.setdefault("continued", []).append(start(case, OURS, run))
    if len({each.state for starts in found.values() for each in starts}) > 1:
        raise SystemExit(f"{case}: the starts do not leave the same bytes")
    for name, starts in found.items():
        seconds, processor = [each.first_update for each in starts], [each.processor for each in starts]
        print(
            f"{case:<10} {name:<9} first update {statistics.median(seconds):5.1f} s (least {min(seconds):4.1f}), "
            f"processor {statistics.median(processor):5.1f} s (least {min(processor):4.1f}), "
            f"resident {statistics.median(each.resident_mb for each in starts):5.0f} MB",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--before", type=Path)
    asked = parser.parse_args()
    for each in asked.cases:
        compare(each, asked.repeats, asked.before)
