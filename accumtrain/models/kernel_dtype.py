"""The dtype in which a CPU computes convolutions and matrix products of 16 bits.

Without instructions for 16 bits TensorFlow's CPU kernels for the gradients of a convolution make a twentieth of the
operations per second that float32's make. With them either may be faster (docs/kernels.md).
"""

from __future__ import annotations

import os
from functools import cache

import tensorflow as tf
from tensorflow.python.util._pywrap_util_port import IsMklEnabled  # not public; whether oneDNN computes

from accumtrain.backprop.target import by_cpu_kernels
from accumtrain.process.environment import KERNELS_16BIT
from accumtrain.process.processor import FOR_16_BITS, cpu


def kernel_dtype(dtype: tf.DType) -> tf.DType:
    """The dtype in which kernels compute what is given and returned in `dtype`.

    float32 if a CPU only emulates `dtype`, or is slower in it (planning/kernel_choice.py). Values of 16 bits are exact
    in float32, and kernels for 16 bits sum in float32 too. So both give the same numbers up to the order of sums.
    """
    return tf.float32 if by_cpu_kernels() and (is_emulated(dtype) or _is_slower(dtype)) else dtype


@cache
def is_emulated(dtype: tf.DType) -> bool:
    """Whether this process has no CPU kernels that compute in `dtype` by instructions for it."""
    needed = FOR_16_BITS.get(dtype.name)
    return needed is not None and not (IsMklEnabled() and needed.intersection(cpu()["instructions"]))


def _is_slower(dtype: tf.DType) -> bool:
    """Whether the environment says that float32 is faster."""
    return dtype.name in FOR_16_BITS and os.environ.get(KERNELS_16BIT) == "0"
