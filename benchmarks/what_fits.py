"""The largest micro-batch of three networks at 224 px under 2, 4, 8 and 16 GB, from `job=plan` (half an hour).

    .venv/bin/python benchmarks/what_fits.py
    .venv/bin/python benchmarks/what_fits.py --only resnet50-adam
    .venv/bin/python benchmarks/what_fits.py --show      # runs nothing

Each case is one `accumtrain job=plan` under 2 GB. Its plan.json stays in --plans and is not made again. A straight line
through its two largest measured peaks says what fits under a limit, so no trial takes more than 2 GB of tensors.
benchmarks/results.py puts the table into docs/results.md.
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench import Table

from accumtrain.measure.probe import SHARE
from accumtrain.measure.search import Point, line_through
from accumtrain.runs.files import read_json
from accumtrain.runs.folder import TRIALS

PLANS = Path("runs/what_fits")
LIMITS = (2, 4, 8, 16)  # GB of tensors
MEASURED_UNDER = 2048  # MB
IMAGES = ("data=synthetic", "data.image_size=224", "data.num_classes=1000", "batch_size=64")
MODELS = ("revnet104", "resnet101", "resnet50")
OPTIMIZERS = ("adam", "adafactor")
CASES = {f"{model}-{optim}": (f"model={model}", f"optim={optim}") for optim in OPTIMIZERS for model in MODELS}
HEAD = ("network", "optimizer", "activations", *(f"{limit} GB" for limit in LIMITS), "measured up to")
NOT_PLANNED = "not run"


def command_of(case: str) -> list[str]:
    """Return the words of the command that plans a case, but for its folder."""
    return ["accumtrain", "job=plan", *CASES[case], *IMAGES, f"device.memory_limit_mb={MEASURED_UNDER}"]


def plan_file(case: str, plans: Path) -> Path:
    """Return the file that job=plan writes for a case."""
    return plans / TRIALS / f"plan-{case}" / "plan.json"


def read_plan(case: str, plans: Path) -> list[dict[str, Any]]:
    """Return the trials of a case, or none if it has not been planned."""
    file = plan_file(case, plans)
    trials: list[dict[str, Any]] = read_json(file, dict[str, Any])["trials"] if file.exists() else []
    return trials


def make_missing(cases: Sequence[str], plans: Path) -> None:
    """Plan the cases that have no plan.json yet. Raise SystemExit with the exit code of a plan that fails."""
    for case in cases:
        if not read_plan(case, plans):
            command = [*command_of(case), f"run.dir={plans}", f"run.name={case}"]
            print(f"\n{shlex.join(command)}", flush=True)
            if code := subprocess.run([sys.executable, "-m", *command], check=False).returncode:
                raise SystemExit(code)


def tabulate_cases(cases: Sequence[str], plans: Path, *, printed: bool) -> list[str]:
    """Return the table in lines: a row for each memory policy of each case."""
    table = Table(*HEAD, printed=printed)
    for case in cases:
        model, optim = (override.partition("=")[2] for override in CASES[case])
        found = peaks_by_policy(read_plan(case, plans))
        if not found:
            table.row(model, optim, NOT_PLANNED, *[""] * len(LIMITS), "")
        for policy, peaks in found.items():
            if len(peaks) < 2:
                raise SystemExit(f"{case}, {policy}: a line needs two micro-batches that fit into {MEASURED_UNDER} MB")
            sizes = [largest_under(limit * 2**30, peaks) or "none" for limit in LIMITS]
            table.row(model, optim, policy, *sizes, f"{peaks[-1][0]}: {peaks[-1][1] / 2**20:,.0f} MB")
    return table.lines


def peaks_by_policy(trials: Sequence[Mapping[str, Any]]) -> dict[str, list[Point]]:
    """Return the micro-batches that have run, with the bytes of tensors at the peak, by memory policy."""
    found: dict[str, list[Point]] = {}
    for trial in trials:
        if trial["measured"] and trial["fits"]:
            found.setdefault(trial["memory"], []).append((trial["micro_batch"], trial["peak_bytes"]))
    return {policy: sorted(peaks) for policy, peaks in found.items()}


def largest_under(limit: float, peaks: Sequence[Point]) -> int:
    """Return the largest micro-batch whose peak on the line through the last two is within a limit's SHARE.

    It is 0 if even the smallest that was tried is beyond. `job=plan` leaves the same share free.
    """
    base, slope = line_through(*peaks[-2:])
    size = int((SHARE * limit - base) / slope)
    return size if size >= peaks[0][0] else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--plans", type=Path, default=PLANS, help="the folder of the plans")
    parser.add_argument("--show", action="store_true", help="run nothing, only show what there is")
    options = parser.parse_args()
    if not options.show:
        make_missing(options.only, options.plans)
    tabulate_cases(options.only, options.plans, printed=True)


if __name__ == "__main__":
    main()
