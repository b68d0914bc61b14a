"""What a precision of 16 bits costs on a CPU that has no kernels for it, or slower ones than for float32."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from accumtrain.backprop.target import by_cpu_kernels
from accumtrain.console import say, warn
from accumtrain.engine.live_operations import CONVOLUTIONS_AND_GRADIENTS, all_live_operations
from accumtrain.models.kernel_dtype import is_emulated, kernel_dtype
from accumtrain.process.environment import KERNELS_16BIT

PRODUCTS = ("MatMul", "BatchMatMulV2", "Einsum", *CONVOLUTIONS_AND_GRADIENTS)


def tell_emulation(micro_step: Any, precision: str, *, compiled: bool) -> None:
    """Says before the first update that a precision of 16 bits saves no time on this CPU.

    Layers of accumtrain compute convolutions and matrix products in float32 then (models/kernel_dtype.py); those of
    Keras and of users do not.

    Args:
        micro_step: the traced micro-step, which is not looked at unless it is compiled.
        precision: of the run.
        compiled: whether TensorFlow's own kernels run the graph, not Python or what XLA makes of it.
    """
    dtype = tf.dtypes.as_dtype(precision)
    if dtype.size != 2 or not (compiled and by_cpu_kernels()):
        return
    products = [operation for operation in all_live_operations(micro_step.graph) if operation.type in PRODUCTS]
    narrow = sum(operation.outputs[0].dtype == dtype for operation in products)
    if narrow and is_emulated(dtype):
        warn(
            f"{narrow} of {len(products)} convolutions and matrix products are computed in {dtype.name}, which this "
            "CPU only emulates: precision=float32 is faster; if memory is short, with accum.steps=auto"
        )
    elif not narrow and kernel_dtype(dtype) != dtype:
        reason = "as this CPU has no kernels for it" if is_emulated(dtype) else f"by {KERNELS_16BIT}=0"
        how = f"convolutions and matrix products are computed in float32, {reason}"
        say(f"precision={precision} saves memory here, not time: {how}")
