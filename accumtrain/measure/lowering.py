"""A whole update as one StableHLO program, for the compiler of a device that this machine does not have."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from accumtrain.backprop.tracing import after, for_xla
from accumtrain.engine.losses import Batch
from accumtrain.engine.window import Window
from accumtrain.measure.flops import count_flops


def lower(window: Window, image_shape: tuple[int, ...], micro_batch: int) -> tuple[str, int]:
    """Lower the update of one replica: the window's micro-steps in a loop, then its commit.

    The program takes one micro-batch, as a device holds one at a time. Every micro-step computes with it: images
    float32 [micro_batch, *image_shape], labels int32 [micro_batch] and weights float32 [micro_batch].

    Returns:
        The program as StableHLO text, and the floating-point operations of an update (see count_flops). The arguments
        of the program are the micro-batch and all variables of the window.
    """

    def update(image: tf.Tensor, label: tf.Tensor, weight: tf.Tensor) -> dict[str, tf.Tensor]:
        batch: Batch = {"image": image, "label": label, "weight": weight}

        def micro_step(done: tf.Tensor) -> tuple[tf.Tensor]:
            # Without this XLA computes what depends only on images or weights once, and keeps it through the window.
            weights = window.model.learnable
            values = after([done], [tf.identity(weight) for weight in weights])
            for weight, value in zip(weights, values, strict=True):
                weight.assign(value)
            window.accumulate(after([done], batch))
            return (done + 1,)

        with for_xla():
            tf.while_loop(lambda done: done < window.micro_steps, micro_step, (tf.constant(0),), parallel_iterations=1)
            return window.commit()

    compiled: Any = tf.function(update, autograph=False, jit_compile=True)
    batch = (
        tf.TensorSpec([micro_batch, *image_shape], tf.float32),
        tf.TensorSpec([micro_batch], tf.int32),
        tf.TensorSpec([micro_batch], tf.float32),
    )
    text = compiled.experimental_get_compiler_ir(*batch)(stage="stablehlo")
    flops = count_flops(compiled.get_concrete_function(*batch).graph, micro_batch)
    return text, window.micro_steps * flops
