"""Memory and time of one gradient of U-Nets at 256 px: each memory policy, and the plain one in Keras (15 minutes).

    .venv/bin/python benchmarks/unet_models.py
    .venv/bin/python benchmarks/unet_models.py --size 512 --micro-batch 1

MB at the peak over what is there before it, as asked of the CPU's allocator. Weights and sums of gradients are there
before. Seconds are the least of `--rounds`. Each row is from a process of its own. The models are unet_base and
revunet_base with group norm; the one in Keras has the layers and filters of unet_base.
"""

import argparse
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

os.environ.update(TF_CPU_ALLOCATOR_USE_BFC="true", TF_CPP_MIN_LOG_LEVEL="3")  # before TensorFlow is imported

import keras
import tensorflow as tf
from asked import bytes_asked_at_peak
from workbench import Table, compose, timed

from accumtrain.backprop import tape
from accumtrain.backprop.mode import Mode
from accumtrain.fields import EACH
from accumtrain.models.build import build_model
from accumtrain.models.layers import ModelSpec
from accumtrain.models.norms import EPSILON

MB = 2**20
CLASSES = 21  # those of PASCAL VOC
KERAS = "keras"
FILTERS = [64, 128, 256, 512, 1024]
ROWS = [("unet_base", "store"), ("unet_base", "recompute"), (KERAS, "store")]
ROWS += [("revunet_base", memory) for memory in ("store", "recompute", "reverse")]


def loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def build_in_keras(filters: list[int], shape: tuple[int, int, int]) -> keras.Model:
    """Build the layers of unet_base."""
    layers = keras.layers

    def block(x: keras.KerasTensor, width: int) -> keras.KerasTensor:
        for _ in range(2):
            x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.GroupNormalization(width // 8, epsilon=EPSILON)(x))
        return x

    x, skips = (inputs := keras.Input(shape)), []
    for width in filters[:-1]:
        skips.append(block(x, width))
        x = layers.MaxPooling2D()(skips[-1])
    x = block(x, filters[-1])
    for width in reversed(filters[:-1]):
        x = layers.Conv2DTranspose(width, 2, strides=2, use_bias=False)(x)
        x = block(layers.Concatenate()([skips.pop(), x]), width)
    return keras.Model(inputs, layers.Conv2D(CLASSES, 1)(x))


def add_gradients(name: str, memory: str, images: tf.Tensor, labels: tf.Tensor) -> tuple[Callable[[], None], int]:
    """Return a function that adds the gradients to sums, and the number of parameters."""
    if name == KERAS:
        model = build_in_keras(FILTERS, images.shape[1:])
        variables = [variable.value for variable in model.trainable_variables]
    else:
        config = compose(f"model={name}", f"model.memory={memory}", "data=synthetic").model
        model = build_model(config, ModelSpec(tuple(images.shape[1:]), CLASSES, tells=EACH))
        variables = list(model.trainable_variables)
    sums = {variable.ref(): tf.Variable(tf.zeros_like(variable)) for variable in variables}

    @tf.function(autograph=False)
    def add() -> None:
        if name == KERAS:
            with tf.GradientTape() as recorded:
                value = loss(labels, model(images, training=True))
            consume(list(zip(variables, recorded.gradient(value, variables), strict=True)))
        else:
            tape.gradient(
                model, images, lambda logits: loss(labels, logits), Mode(training=True, recording=True), consume
            )

    def consume(gradients: list) -> list:
        return [sums[variable.ref()].assign_add(gradient, read_value=False) for variable, gradient in gradients]

    return add, sum(variable.shape.num_elements() for variable in variables)


def measure(name: str, memory: str, size: int, micro_batch: int, rounds: int) -> tuple[int, float, float, float]:
    """Return the number of parameters, the MB at the peak, and the seconds of a gradient, by clock and processor."""
    images = tf.random.stateless_normal([micro_batch, size, size, 3], [0, 1])
    labels = tf.zeros(images.shape[:3], tf.int32)
    add, parameters = add_gradients(name, memory, images, labels)
    add()  # traces
    peak = bytes_asked_at_peak(add)
    taken = [timed(add) for _ in range(rounds)]
    return parameters, peak / MB, min(each.seconds for each in taken), min(each.cpu_seconds for each in taken)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    table = Table("model", "memory", "parameters", "MB at the peak", "seconds", "of the processor")
    for name, memory in ROWS:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            found = process.submit(measure, name, memory, options.size, options.micro_batch, options.rounds).result()
        table.row(name, memory, f"{found[0]:,}", f"{found[1]:.0f}", f"{found[2]:.2f}", f"{found[3]:.2f}")
