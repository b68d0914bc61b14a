"""The two pictures of the TensorFlow RevNet article (Li 2018), made again on CPU (about fifteen minutes, 18 GB).

    .venv/bin/python benchmarks/article.py [--speed-batch 32 --speed-updates 20 --memory-batch 128 --memory-updates 3]

RevNet-104 at 224 px, float32, SGD with momentum, stored and reversed, each in a process of its own: images per second
over the updates, and resident memory over time. Writes docs/article_speed.png and docs/article_memory.png.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import matplotlib
import psutil

matplotlib.use("Agg")
from matplotlib import pyplot

DOCS = Path(__file__).parents[1] / "docs"
CHILD = """
import json, sys, time
from workbench import MicroStep, compose, examples, tf
batch, updates, memory = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
run = MicroStep(compose("model=revnet104", "optim=sgd", f"model.memory={memory}"), (224, 224, 3), 1000)
batches = iter(tf.data.Dataset.from_tensors(examples(batch, (224, 224, 3), 1000)).repeat())
for _ in range(updates):
    started = time.perf_counter()
    run.step.accumulate(batches, tf.constant(1))
    run.step.commit()["step"].numpy()
    print(json.dumps(batch / (time.perf_counter() - started)), flush=True)
"""


def run(batch: int, updates: int, memory: str) -> tuple[list[float], list[tuple[float, float]]]:
    """Images per second of each update, and (seconds, GB resident) over time."""
    command = [sys.executable, "-c", CHILD, str(batch), str(updates), memory]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)
    process, started, resident = psutil.Process(child.pid), time.perf_counter(), []
    while child.poll() is None:
        resident.append((time.perf_counter() - started, process.memory_info().rss / 2**30))
        time.sleep(0.2)
    if child.returncode != 0:
        raise SystemExit(f"memory={memory}, batch {batch}: the process ended with code {child.returncode}")
    assert child.stdout is not None
    return [json.loads(text) for text in child.stdout], resident


def draw(lines: dict[str, list[tuple[float, float]]], x: str, y: str, title: str, path: Path) -> None:
    figure, axis = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for label, points in lines.items():
        axis.plot(*zip(*points, strict=True), label=label)
    axis.set(xlabel=x, ylabel=y, title=title, ylim=(0, None))
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def main(options: argparse.Namespace) -> None:
    speed, resident = {}, {}
    for memory in ("store", "reverse"):
        speeds, _ = run(options.speed_batch, options.speed_updates, memory)
        speed[memory] = list(enumerate(speeds, start=1))[1:]  # the first update traces
        _, resident[memory] = run(options.memory_batch, options.memory_updates, memory)
        median = statistics.median(value for _, value in speed[memory])
        peak = max(size for _, size in resident[memory])
        print(f"{memory:<8} {median:.2f} images/s at batch {options.speed_batch}; ", end="")
        print(f"{peak:.2f} GB resident at batch {options.memory_batch}", flush=True)
    title = "RevNet-104, 224 px, float32, batch"
    draw(speed, "update", "images / s", f"{title} {options.speed_batch}", DOCS / "article_speed.png")
    draw(resident, "seconds", "GB resident", f"{title} {options.memory_batch}", DOCS / "article_memory.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--speed-batch", type=int, default=32)
    parser.add_argument("--speed-updates", type=int, default=20)
    parser.add_argument("--memory-batch", type=int, default=128)
    parser.add_argument("--memory-updates", type=int, default=3)
    main(parser.parse_args())
