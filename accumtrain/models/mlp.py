"""A multilayer perceptron: dense layers with ReLU, for rows of numbers."""

from __future__ import annotations

import itertools
import math

import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.model import Model
from accumtrain.backprop.segments import Chain
from accumtrain.models.config import MlpConfig
from accumtrain.models.layers import Dense, Initializer, ModelSpec


class HiddenLayer(tf.Module):
    """Dense layer and ReLU on arrays [N, ...], which are flattened."""

    def __init__(self, init: Initializer, inputs: int, outputs: int):
        super().__init__()
        self.inputs, self.dense = inputs, Dense(init, inputs, outputs)

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        return tf.nn.relu(self.dense(tf.reshape(x, [-1, self.inputs])))


class DenseHead(tf.Module):
    """Dense layer; its outputs are in the variables' dtype."""

    def __init__(self, init: Initializer, inputs: int, outputs: int):
        super().__init__()
        self.dense, self.dtype = Dense(init, inputs, outputs), init.dtype

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        return self.dense.predict(tf.cast(x, self.dtype), mode)


def build_mlp(config: MlpConfig, spec: ModelSpec) -> Model:
    """Build `depth` hidden layers, each a segment of its own, and a dense layer with an output for each target."""
    widths = [math.prod(spec.shape), *[config.width] * config.depth]
    hidden = [Chain(config.policy, [HiddenLayer(spec.init, *pair)]) for pair in itertools.pairwise(widths)]
    return Model([*hidden, Chain("store", [DenseHead(spec.init, widths[-1], spec.num_classes)])], spec.compute_dtype)
