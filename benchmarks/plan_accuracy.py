"""How well `job=plan` predicts, and whether `accum.steps=auto` picks the right size (about fifteen minutes).

    .venv/bin/python benchmarks/plan_accuracy.py

First what a probe of plan finds against the peak of a real run of three updates, three models in two precisions.
Then runs with accum.steps=auto under ten limits: each must complete, and twice its micro-batch must not.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from command_line import call
from workbench import compose

from accumtrain.planning.probe import probe

OUT_OF_MEMORY = 6  # exit code
IMAGES = ["data=synthetic", "data.num_classes=10", "data.train_examples=512", "data.test_examples=64"]
MODELS = {
    "revnet56": ["model=revnet56", "data.image_size=96", "batch_size=32"],
    "resnet50": ["model=resnet50", "data.image_size=64", "batch_size=32"],
    "resnet20": ["model=resnet20", "data.image_size=32", "batch_size=256"],
}
LIMITS = {"resnet20": (100, 130, 170, 220, 300, 400, 600), "revnet56": (400, 600, 900)}


def run(*overrides: str) -> tuple[int, dict[str, Any] | None]:
    """Exit code and, where that is 0, the summary of three updates with an evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        code, path = call(Path(folder), *IMAGES, *overrides, "train.steps=3")
        return code, json.loads((path / "summary.json").read_text()) if code == 0 else None


def peak_of_run(*overrides: str) -> int | None:
    """Its peak of tensor bytes; None when it runs out of memory."""
    code, summary = run(*overrides)
    if code not in (0, OUT_OF_MEMORY):
        raise SystemExit(f"{' '.join(overrides)}: exit code {code}")
    return None if summary is None else summary["memory"]["tensor_peak_bytes"]


def predictions() -> None:
    print("predicted and real peak of tensors, MB")
    for name, overrides in MODELS.items():
        for precision in ("float32", "bfloat16"):
            asked = [*overrides, f"precision={precision}", "accum.steps=2"]
            config = compose(*IMAGES, *asked)
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
    predictions()
    choices(parser.parse_args().models)
