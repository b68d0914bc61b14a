"""A notice of what a precision of 16 bits costs on a CPU without kernels for it, or with slower ones."""

from __future__ import annotations

import tensorflow as tf

from accumtrain.backprop.target import by_cpu_kernels
from accumtrain.console import say, warn
from accumtrain.models.kernel_dtype import is_emulated, kernel_dtype
from accumtrain.process.environment import KERNELS_16BIT


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
