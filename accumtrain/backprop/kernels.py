"""Dtype and algorithm of convolutions and matrix products on this CPU.

Without instructions for 16 bits TensorFlow's CPU kernels for the gradients of a convolution make a twentieth of the
operations per second that float32's make. With them either may be faster (docs/kernels.md).
"""

from __future__ import annotations

import os
from functools import cache

import tensorflow as tf

from accumtrain.backprop.tracing import after, by_cpu_kernels
from accumtrain.console import say, warn
from accumtrain.process.environment import KERNELS_16BIT
from accumtrain.process.machine import FOR_16_BITS, MATRIX_BFLOAT16, cpu
from accumtrain.process.private import IsMklEnabled

# With so many input channels oneDNN's matrix products in bfloat16 are faster than its kernels for 3x3 convolutions.
# With instructions for matrices that holds for up to FEW_PIXELS along a row, without them for any size.
MANY_CHANNELS = 256
FEW_PIXELS = 8


def kernel_dtype(dtype: tf.DType) -> tf.DType:
    """Return the dtype in which kernels compute with inputs and outputs of `dtype`.

    It is float32 if a CPU only emulates `dtype`, or is slower in it (runs/kernels.py). Values of 16 bits are exact in
    float32, and kernels for 16 bits sum in float32 too. So both give the same numbers up to the order of sums.
    """
    is_slower = dtype.name in FOR_16_BITS and os.environ.get(KERNELS_16BIT) == "0"
    return tf.float32 if by_cpu_kernels() and (is_emulated(dtype) or is_slower) else dtype


@cache
def is_emulated(dtype: tf.DType) -> bool:
    """Return whether this process has no CPU kernels that compute in `dtype` by instructions for it."""
    needed = FOR_16_BITS.get(dtype.name)
    return needed is not None and not (IsMklEnabled() and needed.intersection(cpu()["instructions"]))


def tell_emulation(precision: str, *, own_layers: bool) -> None:
    """Say before the first update that a precision of 16 bits saves no time on this CPU.

    Args:
        precision: of the run.
        own_layers: all layers are those of accumtrain, which compute products in float32 then. Others do not.
    """
    dtype = tf.dtypes.as_dtype(precision)
    if dtype.size != 2 or not by_cpu_kernels():
        return
    if own_layers and kernel_dtype(dtype) != dtype:
        reason = "as this CPU has no kernels for it" if is_emulated(dtype) else f"by {KERNELS_16BIT}=0"
        how = f"convolutions and matrix products are computed in float32, {reason}"
        say(f"precision={precision} saves memory here, not time: {how}")
    elif not own_layers and is_emulated(dtype):
        warn(
            f"this CPU only emulates {dtype.name}, in which layers of Keras and your own compute: precision=float32 is "
            "faster; if memory is short, with accum.steps=auto"
        )


def kernel_gradient(
    x: tf.Tensor, d_y: tf.Tensor, shape: tuple[int, int, int, int], stride: int, padding: str
) -> tf.Tensor:
    """Return the gradient of the kernel [size, size, in, out] of a 2-D convolution, in `kernel_dtype` of x's dtype.

    TensorFlow's operation computes it, or matrix products where they are faster.

    Args:
        x: input of the convolution, [N, H, W, in].
        d_y: gradient of its output, [N, H / stride, W / stride, out].
        shape: shape of the kernel.
    """
    computed = kernel_dtype(x.dtype)
    if computed != x.dtype:  # after d_y, or the cast input is in memory from the forward pass on
        x, d_y = tf.cast(after([d_y], x), computed), tf.cast(d_y, computed)
    if stride == 1 and padding == "SAME" and is_faster_by_products(shape, x.dtype, width=x.shape[2]):
        return kernel_gradient_by_products(x, d_y, shape)
    return tf.raw_ops.Conv2DBackpropFilter(
        input=x, filter_sizes=shape, out_backprop=d_y, strides=[1, stride, stride, 1], padding=padding
    )


def is_faster_by_products(shape: tuple[int, int, int, int], dtype: tf.DType, width: int | None) -> bool:
    """Return whether oneDNN computes the gradient faster by matrix products (measured: docs/kernels.md).

    Args:
        width: pixels along a row of the input; None if it is not known yet.
    """
    size, _, inputs, _ = shape
    if not by_cpu_kernels():
        return False
    wide = size == 3 and inputs >= MANY_CHANNELS and dtype == tf.bfloat16
    return size == 1 or (wide and width is not None and (width <= FEW_PIXELS or not _multiplies_matrices()))


@cache
def _multiplies_matrices() -> bool:
    return MATRIX_BFLOAT16 in cpu()["instructions"]


def kernel_gradient_by_products(x: tf.Tensor, d_y: tf.Tensor, shape: tuple[int, int, int, int]) -> tf.Tensor:
    """Do as `kernel_gradient`, for stride 1 and padding `SAME`, by one matrix product for each row of the kernel."""
    size, _, inputs, outputs = shape
    height, width = d_y.shape[1:3]
    d_pixels = tf.reshape(d_y, [-1, outputs])
    rows = [x]
    if size > 1:
        margin = [size // 2, size // 2]
        # after d_y, or the padded copy is in memory from the forward pass on
        x = tf.pad(after([d_y], x), [[0, 0], margin, margin, [0, 0]])
        x = tf.concat([x[:, :, column : column + width] for column in range(size)], axis=-1)
        rows = [x[:, row : row + height] for row in range(size)]
    patches = [tf.reshape(row, [-1, size * inputs]) for row in rows]
    return tf.reshape(tf.concat([tf.matmul(row, d_pixels, transpose_a=True) for row in patches], axis=0), shape)


def product(a: tf.Tensor, b: tf.Tensor, *, transpose_a: bool = False, transpose_b: bool = False) -> tf.Tensor:
    """Return the matrix product of a and b, [..., rows, columns], in their dtype. `kernel_dtype` computes it."""
    computed = kernel_dtype(a.dtype)
    result = tf.matmul(tf.cast(a, computed), tf.cast(b, computed), transpose_a=transpose_a, transpose_b=transpose_b)
    return tf.cast(result, a.dtype)
