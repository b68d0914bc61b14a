"""A whole update as one program for XLA, for the compiler of a device that this machine does not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from accumtrain.backprop.tracing import after
from accumtrain.engine.losses import Batch
from accumtrain.engine.window import Window
from accumtrain.measure.flops import count_flops
from accumtrain.pjrt.program import Program, lower


def lower_update(window: Window, batch: Mapping[str, Any]) -> tuple[Program, int]:
    """Lower the update of one replica: the window's micro-steps in a loop, then its commit.

    The program takes one micro-batch, as a device holds one at a time. Every micro-step computes with it.

    Args:
        batch: the form of a micro-batch: nested tf.TensorSpec of inputs, targets and weight, each [N, ...].

    Returns:
        The program, and the floating-point operations of an update (see count_flops).

    Raises:
        ConfigError: the update has an operation that XLA can't compile.
    """

    def update(batch: Batch) -> dict[str, tf.Tensor]:
        def micro_step(done: tf.Tensor) -> tuple[tf.Tensor]:
            # Without this XLA computes values of inputs or weights alone once, and keeps them for the whole window.
            weights = window.model.learnable
            values = after([done], [tf.identity(weight) for weight in weights])
            for weight, value in zip(weights, values, strict=True):
                weight.assign(value)
            window.accumulate(after([done], batch))
            return (done + 1,)

        tf.while_loop(lambda done: done < window.micro_steps, micro_step, (tf.constant(0),), parallel_iterations=1)
        return window.commit()

    micro_batch = batch["weight"].shape[0]
    program = lower(update, [batch], window.variables, asked_by="job=plan device=tpu", instead="device=cpu")
    return program, window.micro_steps * count_flops(program.graph, micro_batch)
