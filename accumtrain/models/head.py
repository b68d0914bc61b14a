"""From features to logits: norm, ReLU, global average pooling, dense."""

from __future__ import annotations

import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.models.layers import Dense, Initializer
from accumtrain.models.norm_relu_conv import NormReLU


class Head(tf.Module):
    """Computes average and logits in the dtype of the variables: both are cheap, and bfloat16 would lose bits."""

    def __init__(self, init: Initializer, norm: str, channels: int, classes: int):
        super().__init__()
        self.activation = NormReLU(init, norm, channels)
        self.dense = Dense(init, channels, classes)
        self.dtype = init.dtype

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        x = self.activation(x, mode)  # [N, H, W, C]
        return self.dense(tf.reduce_mean(tf.cast(x, self.dtype), axis=[1, 2]))  # [N, classes]
