"""The two pictures of the TensorFlow RevNet article (Li 2018), made again on CPU (about fifteen minutes, 18 GB).

    .venv/bin/python benchmarks/article.py [--speed-batch 32 --speed-updates 20 --memory-batch 128 --memory-updates 3]

RevNet-104 at 224 px, float32, SGD with momentum, stored and reversed, each in a process of its own: images per second
over the updates, made in turns, and resident memory over time, one after the other. Writes docs/article_speed.png and
docs/article_memory.png.
"""

import argparse
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
POLICIES = ("store", "reverse")
CHILD = """
import sys
from composed import compose
from workbench import MicroStep
batch, memory = int(sys.argv[1]), sys.argv[2]
run = MicroStep(compose("model=revnet104", "optim=sgd", f"model.memory={memory}"), (224, 224, 3), 1000)
for _ in sys.stdin:  # a line asks for an update
    run.update(batch, 1)
    print(run.seconds[-1], flush=True)
"""


class Child:
    """A process that makes an update whenever it is asked to."""

    def __init__(self, memory: str, batch: int):
        self.memory, self.batch = memory, batch
        command = [sys.executable, "-c", CHILD, str(batch), memory]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, cwd=Path(__file__).parent
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._asked, self._said = self.process.stdin, self.process.stdout

    def ask(self) -> None:
        self._asked.write("update\n")

    def seconds(self) -> float:
        """Waits for the update that was asked for."""
        answer = self._said.readline()
        if not answer:
            self.end()
        return float(answer)

    def ask_no_more(self) -> None:
        """It ends after all that was asked for."""
        self._asked.close()

    def end(self) -> None:
        """Waits for all that was asked for."""
        self.ask_no_more()
        if code := self.process.wait():
            raise SystemExit(f"memory={self.memory}, batch {self.batch}: the process ended with code {code}")


def speeds(batch: int, updates: int) -> dict[str, list[tuple[float, float]]]:
    """(update, images per second) of both policies, which take turns; the first update traces and is left out."""
    children = {memory: Child(memory, batch) for memory in POLICIES}
    found: dict[str, list[tuple[float, float]]] = {memory: [] for memory in POLICIES}
    for update in range(1, updates + 1):
        for memory, child in children.items():
            child.ask()
            found[memory].append((update, batch / child.seconds()))
    for child in children.values():
        child.end()
    return {memory: points[1:] for memory, points in found.items()}


def resident(memory: str, batch: int, updates: int) -> list[tuple[float, float]]:
    """(seconds, GB resident) until the last update is done."""
    child = Child(memory, batch)
    process, started = psutil.Process(child.process.pid), time.perf_counter()
    found: list[tuple[float, float]] = []
    for _ in range(updates):
        child.ask()
    child.ask_no_more()
    while child.process.poll() is None:
        found.append((time.perf_counter() - started, process.memory_info().rss / 2**30))
        time.sleep(0.2)
    child.end()
    return found


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
    speed = speeds(options.speed_batch, options.speed_updates)
    memory = {policy: resident(policy, options.memory_batch, options.memory_updates) for policy in POLICIES}
    for policy in POLICIES:
        median = statistics.median(value for _, value in speed[policy])
        peak = max(size for _, size in memory[policy])
        print(f"{policy:<8} {median:.2f} images/s at batch {options.speed_batch}; ", end="")
        print(f"{peak:.2f} GB resident at batch {options.memory_batch}", flush=True)
    pairs = zip(speed["reverse"], speed["store"], strict=True)
    print(f"reversed / stored by turns: {statistics.median(a / b for (_, a), (_, b) in pairs):.2f} of the speed")
    title = "RevNet-104, 224 px, float32, batch"
    draw(speed, "update", "images / s", f"{title} {options.speed_batch}", DOCS / "article_speed.png")
    draw(memory, "seconds", "GB resident", f"{title} {options.memory_batch}", DOCS / "article_memory.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--speed-batch", type=int, default=32)
    parser.add_argument("--speed-updates", type=int, default=20)
    parser.add_argument("--memory-batch", type=int, default=128)
    parser.add_argument("--memory-updates", type=int, default=3)
    main(parser.parse_args())
