"""How long report.html takes: to be made, and to load and draw in headless Chromium, which must be installed.

    python benchmarks/report_page.py                                  # 50 runs of 10,000 points
    python benchmarks/report_page.py --runs 16 --screenshots pictures # also pictures, desktop and phone

The runs are synthetic folders with one train record per update and an evaluation every 100. Under 2 s is wanted.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from accumtrain.runs.compared import read_ranked
from accumtrain.runs.report_page import write_page

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=3000")
SIZES = {"desktop": (1280, 1900), "phone": (390, 2600)}
FRAME = '<body style="margin:0"><iframe src="{page}" style="border:0; width:{width}px; height:{height}px"></iframe>'
CONFIG = """job: train
batch_size: {batch}
precision: float32
model: {{kind: revnet, memory: {memory}}}
optim: {{kind: {optim}, lr: {lr}}}
accum: {{steps: {steps}, reduction: mean}}
run: {{name: {name}, dir: runs, seed: 0}}
"""


def write_run(folder: Path, number: int, points: int) -> None:
    """A run folder as job=train leaves it, with made-up numbers."""
    noise = random.Random(number)
    batch, steps = 2 ** (5 + number % 4), 2 ** (1 + number % 3)
    lr, memory = (0.1, 0.05, 0.01)[number // 4 % 3], ("reverse", "store")[number % 2]
    optim = ("adafactor", "sgd")[number // 8 % 2]
    name = f"revnet38-digits-accum.steps-{steps}-batch_size-{batch}-optim-{optim}-optim.lr-{lr}-run.seed-{number}"
    path = folder / name
    path.mkdir(parents=True)
    path.joinpath("config.yaml").write_text(
        CONFIG.format(batch=batch, memory=memory, optim=optim, lr=lr, steps=steps, name=name)
    )
    pace = 0.3 + noise.random()
    records = []
    for step in range(1, points + 1):
        progress = step / points
        loss = 2.3 * math.exp(-6 * pace * progress) * math.exp(noise.gauss(0, 0.25)) + 0.004
        accuracy = min(1.0, max(0.0, 1 - loss / 2.6 + noise.gauss(0, 0.01)))
        at = {"step": step, "epoch": round(step * batch / 1437, 4), "seconds": round(step * 0.05 * pace, 3)}
        records.append({**at, "split": "train", "loss": loss, "accuracy": accuracy, "learning_rate": lr})
        if step % max(1, points // 100) == 0:
            measured = {"loss": loss * 1.4 + 0.05, "accuracy": max(0.0, accuracy - 0.03), "examples": 360}
            records.append({**at, "split": "test", **measured})
    path.joinpath("metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    activations = 2**20 * (4 if memory == "reverse" else 40) * batch // 64
    kinds = {"weights": 1_857_256, "gradients": 1_857_256, "optimizer": 100_761, "batch_norm": 10_650, "ema": 0}
    last = records[-1]
    summary = {
        "status": "completed",
        "step": points,
        "test": {"loss": last["loss"], "accuracy": last["accuracy"]},
        "examples_per_second": 300 + 200 * noise.random(),
        "seconds": last["seconds"],
        **{"batch_size": batch, "micro_batch_size": batch // steps, "accum_steps": steps, "replicas": 1},
        "memory": {
            "tensor_peak_bytes": activations + sum(kinds.values()),
            "tensor_static_bytes": sum(kinds.values()),
            "rss_peak_bytes": 800 * 2**20 + activations,
        },
        "memory_by_kind": {**kinds, "activations": activations},
    }
    path.joinpath("summary.json").write_text(json.dumps(summary))


def chromium(*arguments: str) -> str:
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        sys.exit("neither chromium nor google-chrome is installed")
    done = subprocess.run([program, *FLAGS, *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--points", type=int, default=10_000, help="train records of each run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--screenshots", type=Path, help="a folder for pictures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "runs"
        for number in range(options.runs):
            write_run(folder, number, options.points)
        page = folder / "report.html"
        started = time.perf_counter()
        runs = read_ranked(sorted(path.parent for path in folder.glob("*/summary.json")))
        read = time.perf_counter() - started
        write_page(runs, page)
        made = time.perf_counter() - started - read
        print(f"{len(runs)} runs x {options.points:,} points: read in {read:.1f} s, page made in {made:.1f} s")
        print(f"report.html: {page.stat().st_size / 2**20:.2f} MB")
        for _ in range(options.repeats):
            drawn = re.search(r'data-drawn="(\d+)"', chromium("--dump-dom", page.as_uri()))
            print("drawn after", f"{drawn[1]} ms" if drawn else "never: the script failed")
        if options.screenshots:
            options.screenshots.mkdir(parents=True, exist_ok=True)
            frame = folder / "frame.html"
            for name, (width, height) in SIZES.items():
                frame.write_text(
                    FRAME.format(page=page.name, width=width, height=height)
                )  # Chromium's least width is 500
                picture = options.screenshots / f"report-{options.runs}-{name}.png"
                chromium(f"--window-size={width},{height}", f"--screenshot={picture}", frame.as_uri())


if __name__ == "__main__":
    main()
