"""Memory of a training step of the U-Net of examples/unet.py, by patch size: stored, recomputed, reversed (10 minutes).

    .venv/bin/python benchmarks/unet_memory.py
    .venv/bin/python benchmarks/unet_memory.py --dimensions 3

MB at the peak of a step over what is there before it, as asked of the CPU's allocator; 4 units in a block, batch 1,
float32. Each figure is from a process of its own. The last column is the largest patch, in steps of 16, within
`--limit` MB, tried downward from the step above a linear estimate; 0 leaves it out. `recomputed` computes each function
f and g of the reversible blocks again, and the changes of resolution.
"""

import argparse
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.update(TF_CPU_ALLOCATOR_USE_BFC="true", TF_CPP_MIN_LOG_LEVEL="3")  # before TensorFlow is imported
sys.path.append(str(Path(__file__).parents[1] / "examples"))

import tensorflow as tf
import unet
from asked import bytes_asked_at_peak
from workbench import Table

MB = 2**20
MEMORIES = {"store": "stored", "recompute": "recomputed", "reverse": "reversed"}
PATCHES = {2: [128, 256, 512], 3: [32, 48]}
UNITS = 4


def measure(memory: str, dimensions: int, patch: int) -> float:
    """MB at the peak of a step."""
    model = unet.unet(dimensions, memory, units=UNITS)
    shape = (1, *[patch] * dimensions)
    pictures, labels = tf.random.stateless_normal([*shape, 1], [0, 1]), tf.zeros(shape, tf.int32)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(unet.dice_and_cross_entropy(labels, model(pictures, training=True)))
        weights = model.trainable_variables
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.01 * gradient)

    step()  # traces
    return bytes_asked_at_peak(step) / MB


def alone(memory: str, dimensions: int, patch: int) -> float:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(measure, memory, dimensions, patch).result()


def largest(memory: str, dimensions: int, limit: int, patch: int, found: float) -> int:
    """The largest patch within the limit, from the memory of a smaller one, which grows with the number of pixels."""
    patch = int(patch * (limit / found) ** (1 / dimensions)) // 16 * 16 + 16
    while alone(memory, dimensions, patch) > limit:
        patch -= 16
    return patch


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dimensions", type=int, choices=[2, 3], default=2)
    parser.add_argument("--patches", type=int, nargs="+")
    parser.add_argument("--limit", type=int, default=2048)
    options = parser.parse_args()
    dimensions, patches = options.dimensions, options.patches or PATCHES[options.dimensions]
    last = [f"largest in {options.limit} MB"] if options.limit else []
    table = Table("memory", *(" x ".join([str(patch)] * dimensions) for patch in patches), *last)
    for memory, name in MEMORIES.items():
        found = [alone(memory, dimensions, patch) for patch in patches]
        last = [str(largest(memory, dimensions, options.limit, patches[-1], found[-1]))] if options.limit else []
        table.row(name, *(f"{value:.0f}" for value in found), *last)
