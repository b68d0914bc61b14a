"""What reversal saves and costs: RevNet-104 at 224 px, reversed against stored (about fifteen minutes).

    .venv/bin/python benchmarks/reversal.py                        # float32 and bfloat16, batch 16, then depth
    .venv/bin/python benchmarks/reversal.py --precision float32 --batch 8 --repeats 9

Time and gradients: both policies in one process on the same weights, their updates of one micro-step in turn; the
median over the pairs, and gradient values compared bit for bit. Memory: each policy in processes of its own, as runs
are; the allocator's peak over what was there before the micro-step, and what was asked of the allocator: the median of
three processes, as the order in which threads free memory, and so its packing, differs. Seconds of both CPUs are what
is left of the time where other work, or the host, takes the CPUs away.
"""

import argparse
import multiprocessing
import statistics
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from composed import compose
from workbench import MB, MicroStep

SHAPE, CLASSES = (224, 224, 3), 1000
PROCESSES = 3


def micro_step(*overrides: str) -> MicroStep:
    return MicroStep(compose("optim=adafactor", *overrides), SHAPE, CLASSES)


def peaks(batches: list[int], *overrides: str) -> list[tuple[float, float]]:
    """MB over static at the peak of a micro-step and MB asked for, for each size of a batch: medians of processes."""
    spawn = multiprocessing.get_context("spawn")
    found = []
    for _ in range(PROCESSES):
        with ProcessPoolExecutor(1, spawn) as process:
            found.append(process.submit(_peaks, batches, *overrides).result())
    return [tuple(map(statistics.median, zip(*of_batch, strict=True))) for of_batch in zip(*found, strict=True)]


def _peaks(batches: list[int], *overrides: str) -> list[tuple[float, float]]:
    run, found = micro_step(*overrides), []
    for batch in batches:
        run.run(batch, timed=False)  # traces
        run.bytes.clear()
        for _ in range(3):
            run.run(batch)
        found.append((max(run.bytes) / MB, run.bytes_asked(batch) / MB))
    return found


def line(name: str, both: Iterable[float], form: str) -> None:
    stored, reversed_ = both
    ratio = reversed_ / stored
    print(f"  {name:<26} stored {stored:>8{form}}  reversed {reversed_:>8{form}}  ratio {ratio:.3f}", flush=True)


def against_stored(model: str, precision: str, batch: int, repeats: int) -> None:
    policies = [
        [f"model={model}", f"model.memory={memory}", f"precision={precision}"] for memory in ("store", "reverse")
    ]
    print(f"{model}, {precision}, {SHAPE[0]} px, batch {batch}", flush=True)
    at_once, at_twice = zip(*(peaks([batch, 2 * batch], *policy) for policy in policies), strict=True)
    for i, name in enumerate(("MB at the peak", "MB asked for")):
        once, twice = [peak[i] for peak in at_once], [peak[i] for peak in at_twice]
        line(name, once, ".0f")
        line("  by a further image", ((b - a) / batch for a, b in zip(once, twice, strict=True)), ".1f")

    stored, reversed_ = (micro_step(*policy) for policy in policies)
    for run in (stored, reversed_):
        run.run(batch, timed=False)
    pairs = list(
        zip(*([buffer.numpy() for buffer in run.window.gradients] for run in (stored, reversed_)), strict=True)
    )
    differing = sum(int(np.sum(s != r)) for s, r in pairs)
    print(f"  {'gradient values':<26} {differing:,} of {sum(s.size for s, _ in pairs):,} differ", flush=True)
    for run in (stored, reversed_):
        run.update(batch, 1, timed=False)  # traces
    for _ in range(repeats):
        for run in (stored, reversed_):
            run.update(batch, 1)
    for name, taken in (
        ("seconds of an update", (stored.seconds, reversed_.seconds)),
        ("seconds of both CPUs", (stored.cpu_seconds, reversed_.cpu_seconds)),
    ):
        line(name, map(statistics.median, taken), ".2f")
        ratio = statistics.median(r / s for s, r in zip(*taken, strict=True))
        print(f"  {'  by pairs':<26} {ratio:.3f} (median of {repeats})", flush=True)


def depth(batch: int) -> None:
    print(f"revnet104 with more units in its third stage, float32, {SHAPE[0]} px, batch {batch}, reversed")
    for units in (11, 44):
        ((peak, asked),) = peaks([batch], "model=revnet104", f"model.units=[2,2,{units},2]")
        print(f"  {units} units: {peak:.1f} MB over static at the peak, {asked:.1f} MB asked for", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="revnet104")
    parser.add_argument("--precision", help="one only; leaves depth out")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    for precision in [options.precision] if options.precision else ["float32", "bfloat16"]:
        against_stored(options.model, precision, options.batch, options.repeats)
    if options.precision is None:
        depth(options.batch)
