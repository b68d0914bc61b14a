"""PyTorch's activation memory budget: ResNet-50 compiled, time against memory, in turn with the budget of 1.

    .venv/bin/python benchmarks/peers/torch_budget.py            # needs PyTorch (make bench) and a C++ compiler

224 px, float32, batch 16, channels_last. `torch._functorch.config.activation_memory_budget` is the share of what would
be saved that may be saved; 1 saves all. Each budget is a process of its own, as compiled code is shared within one.
Memory is by how much the process's resident peak rises in a step.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch._functorch.config
from torch.nn import functional
from torch_models import build

BATCH, SIZE, CLASSES = 16, 224, 1000


def step_with(budget: float) -> Callable[[], None]:
    """A compiled forward and backward pass; None of its gradients is used."""
    torch._functorch.config.activation_memory_budget = budget
    torch.manual_seed(0)
    model = build("resnet50").to(memory_format=torch.channels_last)
    compiled = torch.compile(model)
    images = torch.randn(BATCH, 3, SIZE, SIZE).to(memory_format=torch.channels_last)
    labels = torch.arange(BATCH) % CLASSES

    def step() -> None:
        functional.cross_entropy(compiled(images), labels).backward()
        model.zero_grad(set_to_none=False)

    for _ in range(2):
        step()
    return step


def peak_mb(step: Callable[[], None]) -> float:
    """By how much the resident peak of the process rises in a step."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _status("VmRSS")
    step()
    return (_status("VmHWM") - before) / 1024


def _status(key: str) -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[key].split()[0])


def child(budget: float, asked: Connection) -> None:
    """Sends the memory of a step, then for each request the seconds of one."""
    step = step_with(budget)
    asked.send(peak_mb(step))
    while asked.recv():
        started = time.perf_counter()
        step()
        asked.send(time.perf_counter() - started)


def start(budget: float) -> tuple[Connection, float]:
    """A process with this budget, and its MB."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    multiprocessing.get_context("spawn").Process(target=child, args=(budget, theirs), daemon=True).start()
    return ours, ours.recv()


def seconds_of(process: Connection) -> float:
    process.send(True)
    taken: float = process.recv()
    return taken


def main(options: argparse.Namespace) -> None:
    full, mb = start(1.0)
    print(f"torch {torch.__version__}, resnet50, batch {BATCH}: budget 1, {mb:.0f} MB", flush=True)
    for budget in options.budget:
        process, mb = start(budget)
        ratios = [1 / seconds_of(full) * seconds_of(process) for _ in range(options.repeats)]
        process.send(False)
        print(f"  budget {budget:g}, {mb:.0f} MB, {statistics.median(ratios):.3f} of the time", flush=True)
    full.send(False)
    for each in multiprocessing.active_children():
        each.join()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--budget", type=float, nargs="+", default=[0.7, 0.5, 0.3, 0.1, 0.0])
    parser.add_argument("--repeats", type=int, default=5)
    main(parser.parse_args())
