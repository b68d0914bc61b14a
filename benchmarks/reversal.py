"""What reversal saves and costs: RevNet-104 at 224 px, reversed against stored, side by side.

    .venv/bin/python benchmarks/reversal.py                                 # all of docs/memory.md's table
    .venv/bin/python benchmarks/reversal.py --precision float32 --repeats 9

Both policies run in one process on the same weights, their micro-steps in turn. Memory is the allocator's peak over
what was there before the micro-step; time is the median; differing values are counted over all gradients.
"""

import argparse
import statistics

import numpy as np
from workbench import MB, MicroStep, compose

SHAPE, CLASSES = (224, 224, 3), 1000
POLICIES = ("store", "reverse")


def compare(precision: str, batch: int, repeats: int, further: bool) -> None:
    runs = {
        memory: MicroStep(
            compose(f"model={MODEL}", "optim=adafactor", f"model.memory={memory}", f"precision={precision}"),
            SHAPE,
            CLASSES,
        )
        for memory in POLICIES
    }
    for run in runs.values():
        run.run(batch, timed=False)  # traces
        run.clear()
        run.run(batch, timed=False)
    stored, reversed_ = ([b.numpy() for b in runs[memory].window.gradients] for memory in POLICIES)
    values = sum(array.size for array in stored)
    differing = sum(int(np.sum(a != b)) for a, b in zip(stored, reversed_, strict=True))
    for _ in range(repeats):
        for run in runs.values():
            run.run(batch)
    peak = {memory: max(run.bytes) / MB for memory, run in runs.items()}
    seconds = {memory: statistics.median(run.seconds) for memory, run in runs.items()}
    print(f"{MODEL} {precision}, {SHAPE[0]} px, batch {batch}")
    print(f"  peak over static, MB      stored {peak['store']:8.0f}  reversed {peak['reverse']:8.0f}  ratio {peak['reverse'] / peak['store']:.3f}")
    print(f"  seconds of a micro-step   stored {seconds['store']:8.2f}  reversed {seconds['reverse']:8.2f}  ratio {seconds['reverse'] / seconds['store']:.3f}")
    print("  pairs " + " ".join(f"{b / a:.3f}" for a, b in zip(runs['store'].seconds, runs['reverse'].seconds)))
    print(f"  gradient values differing {differing:,} of {values:,}", flush=True)
    if further:
        for run in runs.values():
            run.bytes.clear()
            run.run(2 * batch, timed=False)
            run.run(2 * batch)
        marginal = {memory: (max(run.bytes) / MB - peak[memory]) / batch for memory, run in runs.items()}
        print(f"  MB for a further image    stored {marginal['store']:8.1f}  reversed {marginal['reverse']:8.1f}  ratio {marginal['reverse'] / marginal['store']:.3f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--further", action="store_true")
    parser.add_argument("--model", default="revnet104")
    options = parser.parse_args()
    MODEL = options.model
    compare(options.precision, options.batch, options.repeats, options.further)
