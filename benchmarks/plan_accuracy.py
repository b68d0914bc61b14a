"""How well `job=plan` foresees, and whether `accum.steps=auto` picks the right size (about an hour).

    .venv/bin/python benchmarks/plan_accuracy.py
    .venv/bin/python benchmarks/plan_accuracy.py --only foreseen

First the peak that is foreseen against the median of three real runs of ten updates, ten models in two precisions, and
the seconds of the table of RevNet-104 at 224 pixels. Then what a probe finds against three updates, three models in
two precisions. Then runs with accum.steps=auto under ten limits: each must complete, twice its micro-batch must not.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from chosen_kernels import kernels_of
from workbench import call, compose

from accumtrain.planning.foresight import foresee
from accumtrain.planning.probe import probe

OUT_OF_MEMORY = 6  # exit code
UPDATES = 10  # of a run that is foreseen: its peak rises while the data pipeline fills and the allocator packs anew
RUNS = 3  # of each: the peaks of equal runs differ by several percent
IMAGES = ["data=synthetic", "data.num_classes=10", "data.train_examples=512", "data.test_examples=64"]
MODELS = {
    "revnet56": ["model=revnet56", "data.image_size=96", "batch_size=32"],
    "resnet50": ["model=resnet50", "data.image_size=64", "batch_size=32"],
    "resnet20": ["model=resnet20", "data.image_size=32", "batch_size=256"],
}
FORESEEN = {
    "lenet5": ["model=lenet5", "data.image_size=32", "batch_size=512"],
    "resnet20": MODELS["resnet20"],
    "resnet32": ["model=resnet32", "model.memory=recompute", "data.image_size=32", "batch_size=128"],
    "revnet38": ["model=revnet38", "data.image_size=32", "batch_size=256"],
    "resnet50": MODELS["resnet50"],
    "revnet56": MODELS["revnet56"],
    "resnet110": ["model=resnet110", "data.image_size=32", "batch_size=32"],
    "revnet110": ["model=revnet110", "data.image_size=32", "batch_size=64"],
    "resnet101": ["model=resnet101", "model.memory=recompute", "data.image_size=64", "batch_size=32"],
    "revnet104": ["model=revnet104", "data.image_size=128", "batch_size=32"],
}
TABLE = ["model=revnet104", "data=synthetic", "data.image_size=224", "batch_size=256", "device.memory_limit_mb=4096"]
LIMITS = {"resnet20": (100, 130, 170, 220, 300, 400, 600), "revnet56": (400, 600, 900)}


def run(*overrides: str) -> tuple[int, dict[str, Any] | None]:
    """Exit code and, where that is 0, the summary of three updates, or as `overrides` say, with an evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        code, path = call(Path(folder), *IMAGES, "train.steps=3", *overrides)
        return code, json.loads((path / "summary.json").read_text()) if code == 0 else None


def peak_of_run(*overrides: str) -> int | None:
    """Its peak of tensor bytes; None when it runs out of memory."""
    code, summary = run(*overrides)
    if code not in (0, OUT_OF_MEMORY):
        raise SystemExit(f"{' '.join(overrides)}: exit code {code}")
    return None if summary is None else summary["memory"]["tensor_peak_bytes"]


def foreseen() -> None:
    print("foreseen and real peaks of tensors, MB")
    errors = []
    for name, overrides in FORESEEN.items():
        for precision in ("float32", "bfloat16"):
            asked = [*overrides, f"precision={precision}", "accum.steps=2"]
            config = compose(*IMAGES, *asked)
            with kernels_of(config):
                started = time.perf_counter()
                found = foresee([config], [config.batch_size // 2])
                seconds = time.perf_counter() - started
            if isinstance(found, str):
                print(f"  {name} {precision}: {found}", flush=True)
                continue
            peaks = [peak_of_run(*asked, f"train.steps={UPDATES}") for _ in range(RUNS)]
            real, plan = sorted(peak for peak in peaks if peak is not None), found[0].points[0].peak_bytes
            assert len(real) == RUNS
            errors.append(plan / statistics.median(real) - 1)
            sizes = f"{plan / 2**20:.1f} {' '.join(f'{peak / 2**20:.1f}' for peak in real)}"
            print(f"  {name} {precision}: {sizes} {errors[-1]:+.1%}, rehearsed in {seconds:.0f} s", flush=True)
    within = sum(abs(error) <= 0.03 for error in errors)
    print(f"  {within} of {len(errors)} within 3 %, the largest error {max(map(abs, errors)):.1%}")


def table_of_revnet104() -> None:
    """The seconds of job=plan, and of all processors for its processes."""
    with tempfile.TemporaryDirectory() as folder:
        started, before = time.perf_counter(), os.times()
        code, _ = call(Path(folder), "job=plan", *TABLE)
        after = os.times()
    busy = after.children_user + after.children_system - before.children_user - before.children_system
    seconds = time.perf_counter() - started
    print(f"the table of RevNet-104: exit code {code}, {seconds:.0f} s, {busy:.0f} s of processors")


def predictions() -> None:
    print("probed and real peak of tensors, MB")
    for name, overrides in MODELS.items():
        for precision in ("float32", "bfloat16"):
            asked = [*overrides, f"precision={precision}", "accum.steps=2"]
            config = compose(*IMAGES, *asked)
            with kernels_of(config):
                trial = probe(config, config.batch_size // 2)
            real = peak_of_run(*asked)
            assert trial.peak_bytes is not None
            assert real is not None
            error = trial.peak_bytes / real - 1
            print(f"  {name} {precision}: {trial.peak_bytes / 2**20:.0f} {real / 2**20:.0f} ({error:+.1%})", flush=True)


def choices(models: list[str]) -> None:
    print("accum.steps=auto")
    for name, limits in LIMITS.items():
        if name not in models:
            continue
        for limit in limits:
            overrides = [*MODELS[name], f"device.memory_limit_mb={limit}"]
            code, summary = run(*overrides, "accum.steps=auto")
            if summary is None:
                print(f"  {name} in {limit} MB: exit code {code}", flush=True)
                continue
            steps, size = summary["accum_steps"], summary["micro_batch_size"]
            double = "is the whole batch"
            if steps % 2 == 0:
                fitted = peak_of_run(*overrides, f"accum.steps={steps // 2}") is not None
                double = "would have FITTED" if fitted else "does not fit"
            print(f"  {name} in {limit} MB: micro-batch {size} completed, its double {double}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="*", default=list(LIMITS), choices=LIMITS, help="for accum.steps=auto")
    parser.add_argument("--only", choices=("foreseen", "probed", "auto"), help="one part")
    arguments = parser.parse_args()
    if arguments.only in (None, "foreseen"):
        with tempfile.TemporaryDirectory() as kept:
            os.environ["XDG_CACHE_HOME"] = kept  # nothing of earlier plans
            foreseen()
            table_of_revnet104()
    if arguments.only in (None, "probed"):
        predictions()
    if arguments.only in (None, "auto"):
        choices(arguments.models)
