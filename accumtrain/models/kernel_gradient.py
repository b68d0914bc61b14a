"""The gradient of a convolution's kernel: its own operation, or matrix products where a CPU is faster at these."""

from __future__ import annotations

import tensorflow as tf

from accumtrain.backprop.order import after
from accumtrain.backprop.target import by_cpu_kernels

MANY = 256  # channels from which on oneDNN's bfloat16 kernels for 3x3 lose against its products, at any image size


def kernel_gradient(
    x: tf.Tensor, d_y: tf.Tensor, shape: tuple[int, int, int, int], stride: int, padding: str
) -> tf.Tensor:
    """Gradient, in the dtype of x, of the kernel [size, size, in, out] of a 2-D convolution.

    Args:
        x: its input [N, H, W, in].
        d_y: the gradient of its output, [N, H / stride, W / stride, out].
        shape: the kernel's.
    """
    if stride == 1 and padding == "SAME" and faster_as_products(shape, x.dtype):
        return by_products(x, d_y, shape)
    return tf.raw_ops.Conv2DBackpropFilter(
        input=x, filter_sizes=shape, out_backprop=d_y, strides=[1, stride, stride, 1], padding=padding
    )


def faster_as_products(shape: tuple[int, int, int, int], dtype: tf.DType) -> bool:
    """Does oneDNN compute matrix products in less time? (benchmarks/kernel_gradient.py)"""
    size, _, inputs, _ = shape
    if not by_cpu_kernels():
        return False
    return size == 1 or (size == 3 and inputs >= MANY and dtype == tf.bfloat16)


def by_products(x: tf.Tensor, d_y: tf.Tensor, shape: tuple[int, int, int, int]) -> tf.Tensor:
    """As kernel_gradient, for stride 1 and padding `SAME`: a matrix product for each row of the kernel."""
    size, _, inputs, outputs = shape
    height, width = d_y.shape[1:3]
    d_pixels = tf.reshape(d_y, [-1, outputs])
    rows = [x]
    if size > 1:
        margin = [size // 2, size // 2]
        x = tf.pad(after([d_y], x), [[0, 0], margin, margin, [0, 0]])  # or it is held from the forward pass on
        x = tf.concat([x[:, :, column : column + width] for column in range(size)], axis=-1)
        rows = [x[:, row : row + height] for row in range(size)]
    met = [tf.reshape(row, [-1, size * inputs]) for row in rows]
    return tf.reshape(tf.concat([tf.matmul(row, d_pixels, transpose_a=True) for row in met], axis=0), shape)
