"""What a longer window costs: RevNet-104 at 224 px, micro-batch 16, float32 (about ten minutes).

    .venv/bin/python benchmarks/accumulation.py [--micro-batch 4]

Memory of a whole update with 2 and with 64 micro-steps; time per image of 8 micro-steps in one window against 8
windows of one, in turn.
"""

import argparse
import statistics

from composed import compose
from workbench import MB, MicroStep, tf

SHAPE, CLASSES, STEPS = (224, 224, 3), 1000, 8


def main(model: str, micro_batch: int, repeats: int) -> None:
    run = MicroStep(compose(f"model={model}", "optim=adafactor"), SHAPE, CLASSES)

    def update(micro_steps: int) -> float:
        run.update(micro_batch, micro_steps)
        return run.seconds[-1]

    update(1)
    print(f"{model}, float32, {SHAPE[0]} px, micro-batch {micro_batch}")
    for micro_steps in (2, 64):
        update(micro_steps)
        peak = tf.config.experimental.get_memory_info("CPU:0")["peak"] / MB
        print(f"  accum.steps={micro_steps:<3} {peak:.1f} MB at the peak", flush=True)
    pairs = [(sum(update(1) for _ in range(STEPS)), update(STEPS)) for _ in range(repeats)]
    alone, together = (statistics.median(values) / STEPS / micro_batch for values in zip(*pairs, strict=True))
    ratio = statistics.median(t / a for a, t in pairs)
    print(f"  seconds per image: accum.steps=1 {alone:.4f}, accum.steps={STEPS} {together:.4f}, by pairs {ratio:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="revnet104")
    parser.add_argument("--micro-batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    main(options.model, options.micro_batch, options.repeats)
