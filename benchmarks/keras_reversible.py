"""What reversal and recomputation save in a Keras model: 12, 24 and 48 units of convolutions (about ten minutes).

`recompute` is accumtrain's layer, `remat` a layer around Keras's own `keras.remat`. Keras's `RematScope` can't be
measured here: in a graph it refuses the keyword argument `training`, which batch normalisation takes.

    .venv/bin/python benchmarks/keras_reversible.py
    .venv/bin/python benchmarks/keras_reversible.py --ways fit --policies float32 --units 12 48

Each line is a process of its own: MB at the peak of one training step over what is there before it (weights), without
the weights' gradients, which any way of training needs: as asked of the CPU's allocator, and as handed out by it.
`fit` is Keras's training loop, `fit-xla` the same with jit_compile=True, `function` one's own step in a tf.function.
"""

import argparse
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from typing import Any

os.environ.update(TF_CPU_ALLOCATOR_USE_BFC="true", TF_CPP_MIN_LOG_LEVEL="3")  # before TensorFlow is imported

import keras
import tensorflow as tf
from asked import bytes_asked_at_peak
from workbench import Table, timed

from accumtrain.keras import ReversibleSequence, recompute

MB = 2**20
BATCH, SIDE, CHANNELS = 16, 64, 16  # of one stream
WAYS = ("fit", "fit-xla", "function")
MEMORIES = ("store", "reverse", "recompute", "remat")


def residual() -> keras.Sequential:
    return keras.Sequential(
        [
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Conv2D(CHANNELS, 3, padding="same", use_bias=False),
        ]
    )


class Remat(keras.layers.Wrapper):
    """A layer whose activations Keras computes again in the backward pass."""

    def call(self, x: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        return keras.remat(lambda value: self.layer(value, training=training))(x)


def build(memory: str, units: int) -> keras.Model:
    inputs = keras.Input([SIDE, SIDE, 3])
    x = keras.layers.Conv2D(2 * CHANNELS, 3, padding="same")(inputs)
    pairs = [(residual(), residual()) for _ in range(units)]
    if memory in ("recompute", "remat"):
        again = recompute if memory == "recompute" else Remat
        x1, x2 = keras.ops.split(keras.ops.cast(x, "float32"), 2, axis=-1)
        for f, g in pairs:
            x1 = x1 + keras.ops.cast(again(f)(x2), "float32")
            x2 = x2 + keras.ops.cast(again(g)(x1), "float32")
        x = keras.layers.Concatenate()([x1, x2])
    else:
        x = ReversibleSequence(pairs, memory=memory)(x)
    outputs = keras.layers.Dense(10, dtype="float32")(keras.layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, outputs)


def measure(memory: str, units: int, way: str, policy: str) -> tuple[float, float, float]:
    """MB asked for and handed out at the peak of a step, without static memory and gradients; seconds of a step."""
    keras.config.set_dtype_policy(policy)
    model = build(memory, units)
    images, labels = tf.random.stateless_normal([BATCH, SIDE, SIDE, 3], [0, 1]), tf.range(BATCH) % 10
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=way == "fit-xla")

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            value = loss(labels, model(images, training=True))
        weights = model.trainable_variables
        for weight, gradient in zip(weights, tape.gradient(value, weights), strict=True):
            weight.assign_sub(0.01 * gradient)

    data = tf.data.Dataset.from_tensors((images, labels)).repeat()

    def work() -> None:
        if way == "function":
            step()
        else:
            model.fit(data, steps_per_epoch=1, shuffle=False, verbose=0)

    work()  # traces
    seconds = min(timed(work).seconds for _ in range(3))
    static = tf.config.experimental.get_memory_info("CPU:0")["current"]
    tf.config.experimental.reset_memory_stats("CPU:0")
    work()
    handed_out = tf.config.experimental.get_memory_info("CPU:0")["peak"] - static
    gradients = 4 * sum(int(tf.size(weight)) for weight in model.trainable_variables)
    return (bytes_asked_at_peak(work) - gradients) / MB, (handed_out - gradients) / MB, seconds


def alone(*arguments: Any) -> tuple[float, float, float]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(measure, *arguments).result()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--units", type=int, nargs="+", default=[12, 24, 48])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--memories", nargs="+", choices=MEMORIES, default=MEMORIES)
    parser.add_argument("--policies", nargs="+", default=["float32", "mixed_bfloat16"])
    options = parser.parse_args()
    print(f"batch {BATCH}, streams [{SIDE}, {SIDE}, {CHANNELS}]\n")
    table = Table("policy", "way", "memory", "units", "MB asked for", "MB handed out", "seconds")
    for policy in options.policies:
        for way in options.ways:
            for memory in options.memories:
                for units in options.units:
                    asked, handed_out, seconds = alone(memory, units, way, policy)
                    table.row(policy, way, memory, units, f"{asked:.1f}", f"{handed_out:.1f}", f"{seconds:.2f}")
