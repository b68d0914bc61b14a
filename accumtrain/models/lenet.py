"""LeNet-5 (LeCun et al. 1998) with ReLU and max-pooling, the network of the MindSpore accumulation tutorial."""

from __future__ import annotations

import itertools

import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.model import Model
from accumtrain.backprop.segments import Chain
from accumtrain.models.config import LeNetConfig
from accumtrain.models.layers import Bias, Conv, Dense, Initializer, ModelSpec


class Features(tf.Module):
    """5x5 convolution with bias, ReLU, 2x2 max-pooling."""

    def __init__(self, init: Initializer, inputs: int, outputs: int, padding: str):
        super().__init__()
        self.conv, self.bias = Conv(init, 5, inputs, outputs, padding=padding), Bias(init, outputs)

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        return tf.nn.max_pool2d(tf.nn.relu(self.bias(self.conv(x))), 2, 2, "SAME")


class Classifier(tf.Module):
    """Three dense layers, `widths` wide, on the flattened features; logits in the variables' dtype."""

    def __init__(self, init: Initializer, widths: list[int]):
        super().__init__()
        self.layers = [Dense(init, *pair) for pair in itertools.pairwise(widths)]
        self.dtype = init.dtype

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        x = tf.reshape(x, [-1, self.layers[0].kernel.shape[0]])
        for layer in self.layers[:-1]:
            x = tf.nn.relu(layer(x))
        return self.layers[-1](tf.cast(x, self.dtype))


def build_lenet(config: LeNetConfig, spec: ModelSpec) -> Model:
    """Build two convolutions and three dense layers.

    LeNet-5 was designed for 32 x 32 pixels. Smaller images are padded in the first convolution, and in the second too
    if its feature map is below 10 x 10. So 28 x 28 has the 61,706 parameters of the original, and 8 x 8 works.
    """
    init = spec.init
    height, width, channels = spec.shape
    paddings, maps = [], [height, width]
    for smallest in (32, 10):
        padded = min(maps) < smallest
        paddings.append("SAME" if padded else "VALID")
        maps = [-(-(size - (0 if padded else 4)) // 2) for size in maps]
    first = Features(init, channels, 6, paddings[0])
    second = Features(init, 6, 16, paddings[1])
    classifier = Classifier(init, [16 * maps[0] * maps[1], 120, 84, spec.num_classes])
    segments = [Chain(config.policy, [first]), Chain(config.policy, [second]), Chain("store", [classifier])]
    return Model(segments, spec.compute_dtype)
