"""Operations of 16 bits for which this CPU has no kernels, so that they take many times as long as in float32."""

from __future__ import annotations

import statistics
import time
from typing import Any

import tensorflow as tf

from accumtrain.console import say, warn
from accumtrain.engine.live_operations import all_live_operations
from accumtrain.models.kernel_dtype import is_emulated, kernel_dtype

CONVOLUTIONS = ("Conv2D", "DepthwiseConv2dNative")
PRODUCTS = (
    *("MatMul", "BatchMatMulV2", "Einsum"),
    *(f"{name}{suffix}" for name in CONVOLUTIONS for suffix in ("", "BackpropInput", "BackpropFilter")),
)
SIDE, CHANNELS, REPEATS = 14, 64, 3  # of the convolution whose gradients measure the emulation


def tell_emulation(micro_step: Any, precision: str, *, compiled: bool) -> None:
    """Says before the first update what a precision costs that this CPU has no kernels for, or slower ones.

    Layers of accumtrain compute convolutions and matrix products in float32 then (models/kernel_dtype.py); those of
    Keras and of users do not.

    Args:
        micro_step: the traced micro-step; None if a kept graph is used, as is done with accumtrain's layers only.
        precision: of the run.
        compiled: whether TensorFlow's own kernels run the graph, not Python or what XLA makes of it.
    """
    dtype = tf.dtypes.as_dtype(precision)
    if not compiled or kernel_dtype(dtype) == dtype:
        return
    emulates = is_emulated(dtype)
    operations = all_live_operations(micro_step.graph) if emulates and micro_step is not None else []
    products = [operation for operation in operations if operation.type in PRODUCTS]
    emulated = sum(operation.outputs[0].dtype == dtype for operation in products)
    if emulated:
        warn(
            f"{emulated} of {len(products)} convolutions and matrix products are computed in {precision}, which this "
            f"CPU only emulates: the gradients of a 3 x 3 convolution take {slowdown(dtype):.2g} times as long here as "
            "in float32. precision=float32 is faster; if memory is short, with accum.steps=auto"
        )
    else:
        reason = "as this CPU has no kernels for it" if emulates else "which is faster on this CPU"
        how = f"convolutions and matrix products are computed in float32, {reason}"
        say(f"precision={precision} saves memory here, not time: {how}")


def slowdown(dtype: tf.DType) -> float:
    """How many times as long as in float32 the gradients of a 3 x 3 convolution take in `dtype`, measured."""
    return _seconds(dtype) / _seconds(tf.float32)


def _seconds(dtype: tf.DType) -> float:
    shape = (1, SIDE, SIDE, CHANNELS)
    size, rest = (3, 3, CHANNELS, CHANNELS), {"strides": [1, 1, 1, 1], "padding": "SAME"}
    image, kernel = tf.zeros(shape, dtype), tf.zeros(size, dtype)
    timings = []
    for _ in range(1 + REPEATS):
        started = time.perf_counter()
        tf.raw_ops.Conv2DBackpropInput(input_sizes=shape, filter=kernel, out_backprop=image, **rest)
        tf.raw_ops.Conv2DBackpropFilter(input=image, filter_sizes=size, out_backprop=image, **rest)
        tf.test.experimental.sync_devices()
        timings.append(time.perf_counter() - started)
    return statistics.median(timings[1:])  # without the first, which also prepares the kernel
