"""When a loss must be scaled, because float16 would round small gradients to 0."""

from __future__ import annotations

import keras
import tensorflow as tf


def needs_loss_scale(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether Keras would scale the loss: the policy is mixed_float16, and the optimizer has no fixed scale."""
    return keras.config.dtype_policy().name == "mixed_float16" and optimizer.loss_scale_factor is None


def check_no_float16(loss: tf.Tensor) -> None:
    """Raises ValueError if the graph of a loss has a tensor of float16. Outside of graphs this is not known."""
    operations = () if tf.executing_eagerly() else loss.graph.get_operations()
    if any(output.dtype == tf.float16 for operation in operations for output in operation.outputs):
        raise ValueError(
            "the model computes in float16, but the dtype policy was another when Accumulate was made: wrap a loss "
            "scale, Accumulate(keras.optimizers.LossScaleOptimizer(optimizer), steps)"
        )
