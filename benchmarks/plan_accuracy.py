"""How well a line of `job=plan` and a probe tell memory, and what `accum.steps=auto` picks (about an hour).

    .venv/bin/python benchmarks/plan_accuracy.py
    .venv/bin/python benchmarks/plan_accuracy.py --only line --of revnet38 resnet20 --precision float32

First the peak on a line through two small micro-batches against the median of three real runs of ten updates, ten
models in two precisions. Then what a probe finds against three updates, three models in two precisions. Then runs with
accum.steps=auto under ten limits: each must complete, twice its micro-batch must not.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from chosen_kernels import kernels_of
from workbench import call, compose

from accumtrain.measure.probe import probe, probe_smallest
from accumtrain.measure.search import on_lines

OUT_OF_MEMORY = 6  # exit code
UPDATES = 10  # of a run: its peak rises while the data pipeline fills and the allocator packs anew
RUNS = 3  # of each: the peaks of equal runs differ by several percent
IMAGES = ["data=synthetic", "data.num_classes=10", "data.train_examples=512", "data.test_examples=64"]
MODELS = {
    "revnet56": ["model=revnet56", "data.image_size=96", "batch_size=32"],
    "resnet50": ["model=resnet50", "data.image_size=64", "batch_size=32"],
    "resnet20": ["model=resnet20", "data.image_size=32", "batch_size=256"],
}
ON_LINES = {
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


def lines(models: list[str], precisions: list[str]) -> None:
    print("on a line through two small micro-batches, and real peaks of tensors, MB")
    errors = []
    for name in models:
        for precision in precisions:
            asked = [*ON_LINES[name], f"precision={precision}", "accum.steps=2"]
            config = compose(*IMAGES, *asked)
            with kernels_of(config):
                started = time.perf_counter()
                small = probe_smallest(config)
                seconds = time.perf_counter() - started
            known = {trial.micro_batch: trial.peak_bytes for trial in small if trial.peak_bytes is not None}
            line = on_lines(known, config.batch_size // 2)
            peaks = [peak_of_run(*asked, f"train.steps={UPDATES}") for _ in range(RUNS)]
            real = sorted(peak for peak in peaks if peak is not None)
            assert len(real) == RUNS
            errors.append(line / statistics.median(real) - 1)
            sizes = f"{line / 2**20:.1f} {' '.join(f'{peak / 2**20:.1f}' for peak in real)}"
            print(f"  {name} {precision}: {sizes} {errors[-1]:+.1%}, probed in {seconds:.0f} s", flush=True)
    within = sum(abs(error) <= 0.1 for error in errors)
    print(f"  {within} of {len(errors)} within 10 %, the largest error {max(map(abs, errors)):.1%}")


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
    parser.add_argument("--of", nargs="*", default=list(ON_LINES), choices=ON_LINES, help="for the line")
    parser.add_argument("--precision", nargs="*", default=["float32", "bfloat16"], help="for the line")
    parser.add_argument("--only", choices=("line", "probed", "auto"), help="one part")
    arguments = parser.parse_args()
    if arguments.only in (None, "line"):
        lines(arguments.of, arguments.precision)
    if arguments.only in (None, "probed"):
        predictions()
    if arguments.only in (None, "auto"):
        choices(arguments.models)
