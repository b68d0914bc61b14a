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
import statistics
from functools import partial

import numpy as np
from micro_step import Images, MicroStep, peaks
from workbench import Table, by_rounds, compose, in_turn

SHAPE, CLASSES = (224, 224, 3), 1000
IMAGES = Images(SHAPE, CLASSES)
POLICIES = {"store": "stored", "reverse": "reversed"}


def micro_step(*overrides: str) -> MicroStep:
    return MicroStep(compose("optim=adafactor", *overrides), IMAGES)


def against_stored(model: str, precision: str, batch: int, repeats: int) -> None:
    policies = {memory: [f"model={model}", f"model.memory={memory}", f"precision={precision}"] for memory in POLICIES}
    print(f"\n{model}, {precision}, {SHAPE[0]} px, batch {batch}; times by {repeats} rounds\n", flush=True)
    table = Table("", *POLICIES.values(), "ratio")
    at_once, at_twice = zip(*(peaks(IMAGES, [batch, 2 * batch], *policy) for policy in policies.values()), strict=True)
    for i, name in enumerate(("MB at the peak", "MB asked for")):
        once, twice = [peak[i] for peak in at_once], [peak[i] for peak in at_twice]
        further = [(b - a) / batch for a, b in zip(once, twice, strict=True)]
        table.row(name, *(f"{mb:.0f}" for mb in once), f"{once[1] / once[0]:.3f}")
        table.row(f"{name}, by a further image", *(f"{mb:.1f}" for mb in further), f"{further[1] / further[0]:.3f}")

    runs = {memory: micro_step(*policy) for memory, policy in policies.items()}
    for run in runs.values():
        run.run(batch)
    stored, reversed_ = ([buffer.numpy() for buffer in run.window.gradients] for run in runs.values())
    differing = sum(int(np.sum(s != r)) for s, r in zip(stored, reversed_, strict=True))
    table.row("gradient values that differ", "", f"{differing:,} of {sum(values.size for values in stored):,}", "")
    turns = {memory: partial(run.update, batch, 1) for memory, run in runs.items()}
    in_turn(turns, 1)  # traces
    taken = in_turn(turns, repeats)
    for name, which in (("seconds of an update", "seconds"), ("seconds of both CPUs", "cpu_seconds")):
        seconds = {memory: [getattr(each, which) for each in found] for memory, found in taken.items()}
        ratio = by_rounds(seconds["reverse"], seconds["store"])
        table.row(name, *(f"{statistics.median(values):.2f}" for values in seconds.values()), f"{ratio:.3f}")


def depth(batch: int) -> None:
    print(f"\nrevnet104, float32, {SHAPE[0]} px, batch {batch}, reversed\n")
    table = Table("units in the third stage", "MB at the peak", "MB asked for")
    for units in (11, 44):
        ((peak, asked),) = peaks(IMAGES, [batch], "model=revnet104", f"model.units=[2,2,{units},2]")
        table.row(units, f"{peak:.1f}", f"{asked:.1f}")


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
