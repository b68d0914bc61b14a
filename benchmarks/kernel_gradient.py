"""The gradient of a convolution's kernel by oneDNN's operation and by matrix products, in turn (about a minute).

    .venv/bin/python benchmarks/kernel_gradient.py

Layers of ResNet-50 at 224 px and of wider ones at 32 px, whole micro-batches of 16 and 128. `ratio`: what the operation
takes over what the products take, the median of rounds; `used`: what accumtrain computes.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

from workbench import tf

from accumtrain.models.kernel_gradient import by_products, faster_as_products

ROUNDS, WARM_UP = 15, 2
LAYERS = (  # size of the kernel, images, pixels along a side, channels in and out
    (1, 16, 56, 64, 256),
    (1, 16, 56, 256, 64),
    (1, 16, 28, 128, 512),
    (1, 16, 28, 512, 128),
    (1, 16, 14, 256, 1024),
    (1, 16, 14, 1024, 256),
    (1, 16, 7, 512, 2048),
    (1, 16, 7, 2048, 512),
    (3, 16, 56, 64, 64),
    (3, 16, 28, 128, 128),
    (3, 16, 14, 256, 256),
    (3, 16, 7, 512, 512),
    (3, 128, 8, 64, 64),
    (3, 128, 8, 128, 128),
    (3, 128, 8, 256, 256),
    (3, 128, 16, 256, 256),
)


def main() -> None:
    print("precision   kernel  images  pixels    channels  operation, ms  products, ms  ratio  used")
    for dtype in (tf.float32, tf.bfloat16):
        for size, images, pixels, inputs, outputs in LAYERS:
            shape = (size, size, inputs, outputs)
            x = tf.cast(tf.random.stateless_normal([images, pixels, pixels, inputs], [0, 1]), dtype)
            d_y = tf.cast(tf.random.stateless_normal([images, pixels, pixels, outputs], [0, 2]), dtype)
            operation, products = in_turn(_operation(shape), _products(shape), x, d_y)
            print(
                f"{dtype.name:11}{size} x {size}{images:9}{pixels:8}{inputs:7} {outputs:5}"
                f"{1e3 * statistics.median(operation):15.2f}{1e3 * statistics.median(products):14.2f}"
                f"{statistics.median(a / b for a, b in zip(operation, products, strict=True)):7.2f}"
                f"  {'products' if faster_as_products(shape, dtype, width=pixels) else 'operation'}",
                flush=True,
            )


def _operation(shape: tuple[int, int, int, int]) -> tf.types.experimental.PolymorphicFunction:
    return tf.function(
        lambda x, d_y: tf.raw_ops.Conv2DBackpropFilter(
            input=x, filter_sizes=shape, out_backprop=d_y, strides=[1, 1, 1, 1], padding="SAME"
        )
    )


def _products(shape: tuple[int, int, int, int]) -> tf.types.experimental.PolymorphicFunction:
    return tf.function(lambda x, d_y: by_products(x, d_y, shape))


def in_turn(
    first: Callable[..., Any], second: Callable[..., Any], *arguments: tf.Tensor
) -> tuple[list[float], list[float]]:
    """Seconds that each takes, round by round."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(WARM_UP + ROUNDS):
        for function, taken in zip((first, second), seconds, strict=True):
            started = time.perf_counter()
            function(*arguments)
            tf.test.experimental.sync_devices()
            if number >= WARM_UP:
                taken.append(time.perf_counter() - started)
    return seconds


if __name__ == "__main__":
    main()
