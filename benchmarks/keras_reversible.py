"""What reversal and recomputation save in a Keras model: 12, 24 and 48 units of convolutions (about ten minutes),
or an encoder of attention.

`recompute` is accumtrain's layer, `remat` a layer around Keras's own `keras.remat`. Keras's `RematScope` can't be
measured here: in a graph it refuses the keyword argument `training`, which batch normalisation takes.

    .venv/bin/python benchmarks/keras_reversible.py
    .venv/bin/python benchmarks/keras_reversible.py --ways fit --policies float32 --units 12 48
    .venv/bin/python benchmarks/keras_reversible.py --network encoder --ways fit --policies float32 --units 6
    .venv/bin/python benchmarks/keras_reversible.py --errors

Each line is a process of its own: MB at the peak of one training step over what is there before it (weights), without
the weights' gradients, which any way of training needs: as asked of the CPU's allocator, and as handed out by it.
`fit` is Keras's training loop, `function` one's own step in a tf.function, `xla` that with jit_compile=True.

`--errors` shows instead how far gradients are from those of float64 with streams of floats, for each number of bits, as
gradient_error.py does for accumtrain's own networks: 12 units, 32 images of 16 x 16 and group norm, for each of SEEDS
of weights and images (3 minutes).
"""

import argparse
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

os.environ.update(TF_CPU_ALLOCATOR_USE_BFC="true", TF_CPP_MIN_LOG_LEVEL="3")  # before TensorFlow is imported

import keras
import numpy as np
import tensorflow as tf
from asked import bytes_asked_at_peak
from workbench import Table, timed

from accumtrain.keras import ReversibleSequence, recompute

MB = 2**20
BATCH, SIDE, CHANNELS = 16, 64, 16  # of one stream
WAYS = ("fit", "function", "xla")
MEMORIES = ("store", "reverse", "recompute", "remat")
SEQUENCES, WORDS, LENGTH, WIDTH, HEADS = 8, 1000, 256, 128, 4  # of the encoder; WIDTH is that of one stream
SEEDS, BITS, ERROR_UNITS, IMAGES = range(100, 148), (0, 16, 22), 12, (32, 16, 16, 3)


def residual() -> keras.Sequential:
    return keras.Sequential(
        [
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Conv2D(CHANNELS, 3, padding="same", use_bias=False),
        ]
    )


def attention() -> keras.Model:
    x = keras.Input([LENGTH, WIDTH])
    normed = keras.layers.LayerNormalization()(x)
    return keras.Model(x, keras.layers.MultiHeadAttention(HEADS, WIDTH // HEADS)(normed, normed))


def mlp() -> keras.Sequential:
    hidden = keras.layers.Dense(4 * WIDTH, "gelu")
    return keras.Sequential([keras.layers.LayerNormalization(), hidden, keras.layers.Dense(WIDTH)])


class Remat(keras.layers.Wrapper):
    """A layer whose activations Keras computes again in the backward pass."""

    def call(self, x: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        return keras.remat(lambda value: self.layer(value, training=training))(x)


class Network(NamedTuple):
    """Its inputs, the layers before, in and after the units, and what it is measured with."""

    shape: list[int]
    dtype: str
    first: Callable[[], keras.layers.Layer]
    pair: Callable[[], tuple[keras.layers.Layer, keras.layers.Layer]]
    pooling: Callable[[], keras.layers.Layer]
    draw: Callable[[], tf.Tensor]


NETWORKS = {
    "convolutions": Network(
        [SIDE, SIDE, 3],
        "float32",
        lambda: keras.layers.Conv2D(2 * CHANNELS, 3, padding="same"),
        lambda: (residual(), residual()),
        keras.layers.GlobalAveragePooling2D,
        lambda: tf.random.stateless_normal([BATCH, SIDE, SIDE, 3], [0, 1]),
    ),
    "encoder": Network(
        [LENGTH],
        "int32",
        lambda: keras.layers.Embedding(WORDS, 2 * WIDTH),
        lambda: (attention(), mlp()),
        keras.layers.GlobalAveragePooling1D,
        lambda: tf.random.stateless_uniform([SEQUENCES, LENGTH], [0, 1], 0, WORDS, tf.int32),
    ),
}


def build(network: Network, memory: str, units: int) -> keras.Model:
    inputs = keras.Input(network.shape, dtype=network.dtype)
    x = network.first()(inputs)
    pairs = [network.pair() for _ in range(units)]
    if memory in ("recompute", "remat"):
        again = recompute if memory == "recompute" else Remat
        x1, x2 = keras.ops.split(keras.ops.cast(x, "float32"), 2, axis=-1)
        for f, g in pairs:
            x1 = x1 + keras.ops.cast(again(f)(x2), "float32")
            x2 = x2 + keras.ops.cast(again(g)(x1), "float32")
        x = keras.layers.Concatenate()([x1, x2])
    else:
        x = ReversibleSequence(pairs, memory=memory)(x)
    outputs = keras.layers.Dense(10, dtype="float32")(network.pooling()(x))
    return keras.Model(inputs, outputs)


def measure(name: str, memory: str, units: int, way: str, policy: str) -> tuple[float, float, float]:
    """MB asked for and handed out at the peak of a step, without static memory and gradients; seconds of a step."""
    keras.config.set_dtype_policy(policy)
    network = NETWORKS[name]
    model, examples = build(network, memory, units), network.draw()
    labels = tf.range(len(examples)) % 10
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False)

    @tf.function(jit_compile=way == "xla")
    def step() -> None:
        with tf.GradientTape() as tape:
            value = loss(labels, model(examples, training=True))
        weights = model.trainable_variables
        for weight, gradient in zip(weights, tape.gradient(value, weights), strict=True):
            weight.assign_sub(0.01 * gradient)

    data = tf.data.Dataset.from_tensors((examples, labels)).repeat()

    def work() -> None:
        if way == "fit":
            model.fit(data, steps_per_epoch=1, shuffle=False, verbose=0)
        else:
            step()

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


def group_normalised() -> keras.Sequential:
    conv = keras.layers.Conv2D(CHANNELS, 3, padding="same", use_bias=False)
    return keras.Sequential([keras.layers.GroupNormalization(4), keras.layers.ReLU(), conv])


def gradient_of(policy: str, bits: int) -> tuple[keras.Model, Callable[[tf.Tensor], list[np.ndarray]]]:
    """A model, and the function from images to the gradient of its summed loss, as float64."""
    keras.config.set_dtype_policy(policy)
    inputs = keras.Input(IMAGES[1:])
    x = keras.layers.Conv2D(2 * CHANNELS, 3, padding="same")(inputs)
    pairs = [(group_normalised(), group_normalised()) for _ in range(ERROR_UNITS)]
    x = ReversibleSequence(pairs, snap_bits=bits)(x)
    model = keras.Model(inputs, keras.layers.Dense(10)(keras.layers.GlobalAveragePooling2D()(x)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")

    @tf.function
    def run(images: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            value = loss(tf.range(len(images)) % 10, model(images, training=True))
        return tape.gradient(value, [weight.value for weight in model.trainable_variables])

    return model, lambda images: [value.numpy().astype(np.float64) for value in run(tf.cast(images, policy))]


def show_errors() -> None:
    exact_model, exact_gradient = gradient_of("float64", 0)
    others = {bits: gradient_of("float32", bits) for bits in BITS}
    errors: dict[int, list[float]] = {bits: [] for bits in BITS}
    for seed in SEEDS:
        keras.utils.set_random_seed(seed)
        weights, images = gradient_of("float32", 0)[0].get_weights(), tf.random.stateless_normal(IMAGES, [seed, 1])
        for model in (exact_model, *(model for model, _ in others.values())):
            model.set_weights(weights)
        exact = exact_gradient(images)
        for bits, (_, gradient) in others.items():
            apart = sum(np.sum((a - b) ** 2) for a, b in zip(gradient(images), exact, strict=True))
            errors[bits].append(float(np.sqrt(apart / sum(np.sum(a**2) for a in exact))))
    table = Table("snap_bits", "median", "mean", "beside floats")
    for bits, found in errors.items():
        mean = np.mean(found)
        table.row(bits, f"{np.median(found):.1e}", f"{mean:.1e}", f"{mean / np.mean(errors[0]):.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", choices=NETWORKS, default="convolutions")
    parser.add_argument("--units", type=int, nargs="+", default=[12, 24, 48])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--memories", nargs="+", choices=MEMORIES, default=MEMORIES)
    parser.add_argument("--policies", nargs="+", default=["float32", "mixed_bfloat16"])
    parser.add_argument("--errors", action="store_true")
    options = parser.parse_args()
    if options.errors:
        show_errors()
        raise SystemExit
    streams = {"convolutions": [BATCH, SIDE, SIDE, CHANNELS], "encoder": [SEQUENCES, LENGTH, WIDTH]}
    print(f"streams {streams[options.network]}\n")
    table = Table("policy", "way", "memory", "units", "MB asked for", "MB handed out", "seconds")
    for policy in options.policies:
        for way in options.ways:
            for memory in options.memories:
                for units in options.units:
                    asked, handed_out, seconds = alone(options.network, memory, units, way, policy)
                    table.row(policy, way, memory, units, f"{asked:.1f}", f"{handed_out:.1f}", f"{seconds:.2f}")
