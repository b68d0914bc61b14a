"""Layers of transformers over the last axis: linear, norms and layer scale; and layers in a row or side by side.

Each says in its `pullback` what is kept: a norm its input and one or two numbers for each token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from accumtrain.backprop.fixed_point import times
from accumtrain.backprop.kernels import product
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.pullback import Gradients, Module, Pullback, chain_pullback, pullback
from accumtrain.backprop.tracing import after, computed_after, is_for_xla
from accumtrain.models.layers import FLOATS_ONLY, Initializer, Numerics

EPSILON = 1e-6  # of norms


class OwnGradient(tf.Module):
    """A layer whose gradient is that of its `pullback`, under a tf.GradientTape, too.

    Attributes:
        numerics: of the stream that it reads, and of the stream that its output is added to. Input and output then are
            values times `Numerics.factors`.
    """

    numerics: Numerics = FLOATS_ONLY

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        """Return y and its pullback. The gradient of y is that of the values without their factor."""
        raise NotImplementedError(f"{type(self).__name__} has no pullback")

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        _, factor = self.numerics.factors(x, mode)

        @tf.custom_gradient
        def with_pullback(x: tf.Tensor) -> tuple[tf.Tensor, Callable]:
            y, backward = self.pullback(x, mode)

            def gradient(
                d_y: tf.Tensor, variables: Sequence[tf.Variable] = ()
            ) -> tuple[tf.Tensor, list[tf.Tensor | None]]:
                d_x, gradients = backward(times(d_y, factor))
                known = {variable.ref(): value for variable, value in gradients}
                return d_x, [known.get(variable.ref()) for variable in variables]  # None of a frozen one

            return y, gradient

        return with_pullback(x)


class Linear(OwnGradient):
    """The function x @ kernel + bias over the last axis, in the dtype of x [..., inputs]. It may have no bias.

    Args:
        numerics: of the stream that the output is added to. Its factor multiplies kernel and bias, which are smaller
            than the output.
    """

    def __init__(
        self,
        init: Initializer,
        inputs: int,
        outputs: int,
        numerics: Numerics = FLOATS_ONLY,
        *,
        has_bias: bool = True,
    ):
        super().__init__()
        self.kernel = init.dense((inputs, outputs))
        self.bias = init.constant(0.0, outputs, "bias") if has_bias else None
        self.numerics = numerics

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        kernel = tf.cast(self.kernel, x.dtype)
        _, factor = self.numerics.factors(x, mode)
        y = product(as_rows(x), times(kernel, factor))
        if self.bias is not None:
            y = y + times(tf.cast(self.bias, x.dtype), factor)

        def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
            d_rows, gradients, awaited = as_rows(d_y), list[tuple[tf.Variable, tf.Tensor | None]](), list[tf.Tensor]()
            if mode.trains(self.kernel):
                awaited.append(product(as_rows(x), d_rows, transpose_a=True))
                gradients.append((self.kernel, tf.cast(awaited[-1], self.kernel.dtype)))
            if self.bias is not None and mode.trains(self.bias):
                awaited.append(tf.reduce_sum(tf.cast(d_rows, self.bias.dtype), axis=0))
                gradients.append((self.bias, awaited[-1]))
            # so that x is freed before d_x takes memory
            with computed_after(awaited, d_rows) as d_rows:
                d_x = product(d_rows, kernel, transpose_b=True)
            return with_axes_of(d_x, x), gradients

        return with_axes_of(y, x), backward


class LayerNorm(OwnGradient):
    """Layer normalisation over the last axis (Ba et al. 2016, arXiv:1607.06450), computed in the dtype of the weights.

    Args:
        numerics: of the stream that it reads, and of the dtype that it returns.
        epsilon: added to the variance.
    """

    def __init__(self, init: Initializer, width: int, numerics: Numerics = FLOATS_ONLY, *, epsilon: float = EPSILON):
        super().__init__()
        self.epsilon = epsilon
        self.gamma, self.beta = init.constant(1.0, width, "gamma"), init.constant(0.0, width, "beta")
        self.numerics = numerics

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        reads, wide = self.numerics.reads.for_mode(mode), self.gamma.dtype
        factor, _ = self.numerics.factors(x, mode)
        values = reads.read(x, wide, factor)
        mean = tf.reduce_mean(values, axis=-1, keepdims=True)
        centred = values - mean
        inverse = tf.math.rsqrt(tf.reduce_mean(centred * centred, axis=-1, keepdims=True) + self.epsilon * factor**2)
        y = tf.cast(centred * inverse * self.gamma + self.beta, self.numerics.dtype(x))

        def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
            d_y = tf.cast(d_y, wide)
            normed = (reads.read(after([d_y], x), wide, factor) - mean) * inverse
            gradients: Gradients = []
            if mode.trains(self.gamma):
                gradients.append((self.gamma, tf.reduce_sum(as_rows(d_y * normed), axis=0)))
            if mode.trains(self.beta):
                gradients.append((self.beta, tf.reduce_sum(as_rows(d_y), axis=0)))
            d_normed = d_y * self.gamma
            shift = tf.reduce_mean(d_normed, axis=-1, keepdims=True)
            slope = tf.reduce_mean(d_normed * normed, axis=-1, keepdims=True)
            d_x = (d_normed - (shift + slope * normed)) * times(inverse, factor)
            return tf.cast(d_x, x.dtype), gradients

        return y, backward


class RMSNorm(OwnGradient):
    """Division by the root mean square over the last axis (Zhang & Sennrich 2019, arXiv:1910.07467), times a factor.

    It is computed in the dtype of the weights.

    Args:
        numerics: of the stream that it reads, and of the dtype that it returns.
        epsilon: added to the mean square.
    """

    def __init__(self, init: Initializer, width: int, numerics: Numerics = FLOATS_ONLY, *, epsilon: float = EPSILON):
        super().__init__()
        self.epsilon = epsilon
        self.gamma = init.constant(1.0, width, "gamma")
        self.numerics = numerics

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        reads, wide = self.numerics.reads.for_mode(mode), self.gamma.dtype
        factor, _ = self.numerics.factors(x, mode)
        values = reads.read(x, wide, factor)
        inverse = tf.math.rsqrt(tf.reduce_mean(values * values, axis=-1, keepdims=True) + self.epsilon * factor**2)
        y = tf.cast(values * inverse * self.gamma, self.numerics.dtype(x))

        def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
            d_y = tf.cast(d_y, wide)
            normed = reads.read(after([d_y], x), wide, factor) * inverse
            gradients: Gradients = []
            if mode.trains(self.gamma):
                gradients.append((self.gamma, tf.reduce_sum(as_rows(d_y * normed), axis=0)))
            d_normed = d_y * self.gamma
            slope = tf.reduce_mean(d_normed * normed, axis=-1, keepdims=True)
            d_x = (d_normed - slope * normed) * times(inverse, factor)
            return tf.cast(d_x, x.dtype), gradients

        return y, backward


class LayerScale(OwnGradient):
    """A trained factor for each channel of a residual function (Touvron et al. 2021, arXiv:2103.17239).

    Args:
        start: the factors at the start.
        numerics: of the stream that the output is added to, as for `Linear`.
    """

    def __init__(self, init: Initializer, width: int, start: float, numerics: Numerics = FLOATS_ONLY):
        super().__init__()
        self.gamma = init.constant(start, width, "gamma")
        self.numerics = numerics

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        _, factor = self.numerics.factors(x, mode)

        def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
            d_x = d_y * tf.cast(self.gamma, x.dtype)
            if not mode.trains(self.gamma):
                return d_x, []
            return d_x, [(self.gamma, tf.reduce_sum(as_rows(tf.cast(d_y * x, self.gamma.dtype)), axis=0))]

        return x * times(tf.cast(self.gamma, x.dtype), factor), backward


class Layers(tf.Module):
    """Layers in a row."""

    def __init__(self, layers: Sequence[Module]):
        super().__init__()
        self.layers = list(layers)

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        for layer in self.layers:
            x = layer(x, mode)
        return x

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        return chain_pullback(self.layers, x, mode)


class Cast(OwnGradient):
    """The same values in another dtype."""

    def __init__(self, dtype: tf.DType):
        super().__init__()
        self.dtype = dtype

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        return tf.cast(x, self.dtype), lambda d_y: (tf.cast(d_y, x.dtype), [])


class Beside(tf.Module):
    """Layers of the same input, whose outputs stand one behind the other on the last axis."""

    def __init__(self, layers: Sequence[Module]):
        super().__init__()
        self.layers = list(layers)

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        return tf.concat([layer(x, mode) for layer in self.layers], axis=-1)

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        outputs, backwards = zip(*(pullback(layer, x, mode) for layer in self.layers), strict=True)
        sizes = [output.shape[-1] for output in outputs]

        def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
            d_x, gradients = None, list[tuple[tf.Variable, tf.Tensor | None]]()
            for back, d_output in zip(backwards, tf.split(d_y, sizes, axis=-1), strict=True):
                d_one, new = back(d_output)
                d_x = d_one if d_x is None else d_x + d_one
                gradients += new
            return d_x, gradients

        return tf.concat(outputs, axis=-1), backward


def apart(x: tf.Tensor) -> tf.Tensor:
    """Return x, which TensorFlow's graph optimizer does not fuse with what comes after it.

    It would do so where nothing else reads x, so in the forward pass and not in a replay, with other bits.
    """
    return x if is_for_xla() else after([], x)


def as_rows(x: tf.Tensor) -> tf.Tensor:
    """Return x [..., C] as [rows, C]."""
    return tf.reshape(x, [-1, x.shape[-1]])


def with_axes_of(y: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Return y [rows, C] with all axes of x but the last."""
    inner = [axis_size(x, axis) for axis in range(1, x.shape.rank - 1)]
    return tf.reshape(y, [-1, *inner, y.shape[-1]])


def axis_size(x: tf.Tensor, axis: int) -> int | tf.Tensor:
    """Return the size of an axis: a number where it is known."""
    return x.shape[axis] or tf.shape(x)[axis]
