"""The activations of transformers, and the gate of gated MLPs. Each keeps its input or output alone."""

from __future__ import annotations

import math

import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.pullback import Gradients, Pullback
from accumtrain.backprop.tracing import after
from accumtrain.models.transformers.layers import OwnGradient, apart

ROOT_HALF = math.sqrt(0.5)
DENSITY_AT_0 = 1 / math.sqrt(2 * math.pi)  # of the normal distribution
SLOPE, CUBIC = math.sqrt(2 / math.pi), 0.044715  # of the approximation by tanh


class GELU(OwnGradient):
    """The function x * P(X <= x) for a normal X (Hendrycks & Gimpel 2016, arXiv:1606.08415)."""

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        x = apart(x)

        def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
            again = after([d_y], x)
            density = DENSITY_AT_0 * tf.exp(-0.5 * again * again)
            share = 0.5 + 0.5 * tf.math.erf(ROOT_HALF * again)
            return d_y * (share + again * density), []

        return 0.5 * x * (1.0 + tf.math.erf(ROOT_HALF * x)), backward  # in this form exports know it


class TanhGELU(OwnGradient):
    """The approximation of GELU by tanh, of the same paper, which some published weights were trained with."""

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        x = apart(x)

        def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
            again = after([d_y], x)
            square = again * again
            bent = tf.tanh(SLOPE * again * (1.0 + CUBIC * square))
            slope = SLOPE * (1.0 + 3.0 * CUBIC * square)
            return d_y * 0.5 * (1.0 + bent + again * (1.0 - bent * bent) * slope), []

        return 0.5 * x * (1.0 + tf.tanh(SLOPE * x * (1.0 + CUBIC * x * x))), backward


class ReLU(OwnGradient):
    """The function max(x, 0)."""

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        y = tf.nn.relu(apart(x))

        def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
            return tf.where(y > 0, d_y, tf.zeros_like(d_y)), []

        return y, backward


class Tanh(OwnGradient):
    """The hyperbolic tangent."""

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        y = tf.tanh(apart(x))

        def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
            return d_y * (1.0 - y * y), []

        return y, backward


class SwiGLU(OwnGradient):
    """The gate of an MLP (Shazeer 2020, arXiv:2002.05202): from [..., 2 C], gates beside values, to [..., C].

    Each value is multiplied by silu(gate) = gate / (1 + exp(-gate)).
    """

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        x = apart(x)

        def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
            gate, value = tf.split(after([d_y], x), 2, axis=-1)
            share = tf.sigmoid(gate)
            silu = gate * share
            slope = share + silu * (1.0 - share)
            return tf.concat([d_y * value * slope, d_y * silu], axis=-1), []

        gate, value = tf.split(x, 2, axis=-1)
        return gate * tf.sigmoid(gate) * value, backward


# by their names in configurations
ACTIVATIONS: dict[str, type[OwnGradient]] = {
    "gelu": GELU,
    "gelu_tanh": TanhGELU,
    "relu": ReLU,
    "tanh": Tanh,
    "swiglu": SwiGLU,
}
