"""The dtype in which a CPU computes convolutions and matrix products of 16 bits.

TensorFlow's own CPU kernels for the gradients of a convolution of 16 bits make a twentieth of the operations per second
that float32's make (docs/kernels.md). oneDNN's are faster than float32's where the processor has instructions for them.
"""

from __future__ import annotations

from functools import cache

import tensorflow as tf
from tensorflow.python.util._pywrap_util_port import IsMklEnabled  # not public; whether oneDNN computes

from accumtrain.backprop.target import by_cpu_kernels
from accumtrain.process.processor import cpu

# instruction sets of which one is enough
INSTRUCTIONS = {tf.bfloat16: {"avx512_bf16", "amx_bf16"}, tf.float16: {"avx512_fp16", "amx_fp16"}}


def kernel_dtype(dtype: tf.DType) -> tf.DType:
    """The dtype in which kernels compute what is given and returned in `dtype`: float32 if that is emulated here.

    Values of 16 bits are exact in float32, and kernels for 16 bits sum in float32 too. So both give the same numbers up
    to the order of sums.
    """
    return tf.float32 if by_cpu_kernels() and is_emulated(dtype) else dtype


@cache
def is_emulated(dtype: tf.DType) -> bool:
    """Whether this process has no CPU kernels that compute in `dtype` by instructions for it."""
    needed = INSTRUCTIONS.get(dtype)
    return needed is not None and not (IsMklEnabled() and needed.intersection(cpu()["instructions"]))
