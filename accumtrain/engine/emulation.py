"""What a precision of 16 bits costs on a CPU that has no kernels for it, or slower ones than for float32."""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

import tensorflow as tf

from accumtrain.backprop.target import by_cpu_kernels
from accumtrain.console import say, warn
from accumtrain.engine.live_operations import CONVOLUTIONS_AND_GRADIENTS, all_live_operations
from accumtrain.models.kernel_dtype import is_emulated, kernel_dtype
from accumtrain.process.environment import KERNELS_16BIT

PRODUCTS = ("MatMul", "BatchMatMulV2", "Einsum", *CONVOLUTIONS_AND_GRADIENTS)
SIDE, CHANNELS, REPEATS = 14, 64, 3  # of the convolution whose gradients are timed
SLOWER = 1.2  # times as long as in float32 is worth a warning


def tell_emulation(micro_step: Any, precision: str, *, compiled: bool) -> None:
    """Says before the first update what a precision of 16 bits costs where this CPU is slower in it than in float32.

    Layers of accumtrain compute convolutions and matrix products in float32 then (models/kernel_dtype.py); those of
    Keras and of users do not.

    Args:
        micro_step: the traced micro-step; None if a kept graph is used, as is done with accumtrain's layers only.
        precision: of the run.
        compiled: whether TensorFlow's own kernels run the graph, not Python or what XLA makes of it.
    """
    dtype = tf.dtypes.as_dtype(precision)
    if dtype.size != 2 or not (compiled and by_cpu_kernels()):
        return
    if os.environ.get(KERNELS_16BIT) == "1" and not is_emulated(dtype):  # measured to be faster, or asked for
        return
    operations = [] if micro_step is None else all_live_operations(micro_step.graph)
    products = [operation for operation in operations if operation.type in PRODUCTS]
    narrow = sum(operation.outputs[0].dtype == dtype for operation in products)
    if narrow:
        _warn_if_slower(narrow, len(products), dtype)
    elif kernel_dtype(dtype) != dtype:
        reason = "as this CPU has no kernels for it" if is_emulated(dtype) else f"by {KERNELS_16BIT}=0"
        how = f"convolutions and matrix products are computed in float32, {reason}"
        say(f"precision={precision} saves memory here, not time: {how}")


def _warn_if_slower(narrow: int, products: int, dtype: tf.DType) -> None:
    factor = slowdown(dtype)
    if factor >= SLOWER:
        emulated, faster = (", which this CPU only emulates", "is") if is_emulated(dtype) else ("", "may be")
        warn(
            f"{narrow} of {products} convolutions and matrix products are computed in {dtype.name}{emulated}: the "
            f"gradients of a 3 x 3 convolution take {factor:.2g} times as long here as in float32. precision=float32 "
            f"{faster} faster; if memory is short, with accum.steps=auto"
        )


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
        # on a CPU an operation has ended when it returns; sync_devices() fails in a process that has other workers
        timings.append(time.perf_counter() - started)
    return statistics.median(timings[1:])  # without the first, which also prepares the kernel
