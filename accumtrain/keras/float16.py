"""When a loss must be scaled, because float16 would round small gradients to 0."""

from __future__ import annotations

import keras
import tensorflow as tf


def needs_loss_scale(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether Keras would scale the loss: the policy is mixed_float16, and the optimizer has no fixed scale."""
    return keras.config.dtype_policy().name == "mixed_float16" and optimizer.loss_scale_factor is None


def computed_in_float16(loss: tf.Tensor) -> bool:
    """Whether the graph of a loss has a tensor of float16; False outside of graphs, where this is not known."""
    operations = () if tf.executing_eagerly() else loss.graph.get_operations()
    return any(output.dtype == tf.float16 for operation in operations for output in operation.outputs)
