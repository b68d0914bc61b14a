"""The gradient of a convolution's kernel: by TensorFlow's operation for it, or by matrix products where faster."""

from __future__ import annotations

from functools import cache

import tensorflow as tf

from accumtrain.backprop.order import after
from accumtrain.backprop.target import by_cpu_kernels
from accumtrain.models.kernel_dtype import kernel_dtype
from accumtrain.process.processor import MATRIX_BFLOAT16, cpu

# With so many input channels oneDNN's matrix products in bfloat16 are faster than its kernels for 3x3 convolutions: at
# any image size, or with instructions for matrices up to so many pixels along a row.
MANY_CHANNELS = 256
FEW_PIXELS = 8


def kernel_gradient(
    x: tf.Tensor, d_y: tf.Tensor, shape: tuple[int, int, int, int], stride: int, padding: str
) -> tf.Tensor:
    """The gradient of the kernel [size, size, in, out] of a 2-D convolution, in `kernel_dtype` of the dtype of x.

    Args:
        x: input of the convolution, [N, H, W, in].
        d_y: gradient of its output, [N, H / stride, W / stride, out].
        shape: shape of the kernel.
    """
    computed = kernel_dtype(x.dtype)
    if computed != x.dtype:  # after d_y, or the cast input is in memory from the forward pass on
        x, d_y = tf.cast(after([d_y], x), computed), tf.cast(d_y, computed)
    if stride == 1 and padding == "SAME" and faster_as_products(shape, x.dtype, width=x.shape[2]):
        return by_products(x, d_y, shape)
    return tf.raw_ops.Conv2DBackpropFilter(
        input=x, filter_sizes=shape, out_backprop=d_y, strides=[1, stride, stride, 1], padding=padding
    )


def faster_as_products(shape: tuple[int, int, int, int], dtype: tf.DType, width: int) -> bool:
    """Whether oneDNN computes the gradient faster by matrix products (measured: docs/kernels.md).

    Args:
        width: pixels along a row of the input.
    """
    size, _, inputs, _ = shape
    if not by_cpu_kernels():
        return False
    wide = size == 3 and inputs >= MANY_CHANNELS and dtype == tf.bfloat16
    return size == 1 or (wide and (width <= FEW_PIXELS or not _multiplies_matrices()))


@cache
def _multiplies_matrices() -> bool:
    return MATRIX_BFLOAT16 in cpu()["instructions"]


def by_products(x: tf.Tensor, d_y: tf.Tensor, shape: tuple[int, int, int, int]) -> tf.Tensor:
    """As `kernel_gradient`, for stride 1 and padding `SAME`: by one matrix product for each row of the kernel."""
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
