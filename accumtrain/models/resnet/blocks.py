"""The blocks of ResNets and RevNets: stem, residual functions, shortcuts, stochastic depth, head.

Residual functions are pre-activation ones (He et al. 2016, arXiv:1603.05027).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import tensorflow as tf

from accumtrain.backprop.fixed_point import FLOATS, times
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.model import Model
from accumtrain.backprop.pullback import Gradients, Module, Pullback, chain_pullback, tape_pullback
from accumtrain.models.layers import FLOATS_ONLY, Conv, Dense, Initializer, Numerics
from accumtrain.models.norms import NORMS
from accumtrain.models.resnet.kept_convs import conv_shapes
from accumtrain.models.resnet.norm_relu_conv import NormReLU, NormReLUConv, rectify

AnyModel = TypeVar("AnyModel", bound=Model)


@dataclass(frozen=True)
class DropPath:
    """Stochastic depth (Huang et al. 2016, arXiv:1603.09382): some examples leave out a residual function in training.

    Its output is multiplied by 0 or 1 / (1 - rate), example by example; in evaluation by 1. The draws depend on run,
    update and index in the window alone, so a replay draws the same. The function is computed for all examples, and
    batch norm sees them all.

    Attributes:
        rate: probability of 0, below 1.
        number: of the residual function in its model; each has its own draws.
    """

    rate: float
    number: int

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        return x * self._factor(x, mode) if mode.training else x

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        factor = self._factor(x, mode)

        def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
            return d_y * factor, []

        return x * factor, backward

    def _factor(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        """Return the factors [N, 1, ..., 1], of the rank and dtype of x."""
        if mode.draws is None:
            raise ValueError("model.drop_path needs Mode(draws=...): the random numbers of the examples")
        kept = tf.cast(mode.draws(self.number) >= self.rate, x.dtype)
        return tf.reshape(kept, [-1, *[1] * (x.shape.rank - 1)]) / tf.constant(1.0 - self.rate, x.dtype)


def drop_paths(rate: float, count: int) -> Iterator[DropPath | None]:
    """Yield one for each of `count` residual functions, with rates up to `rate` in equal steps; None for each if 0."""
    for number in range(count):
        yield DropPath(rate * (number + 1) / count, number) if rate else None


class Residual(tf.Module):
    """Two 3x3 convolutions, or the bottleneck of 1x1, 3x3 and 1x1, each after norm and ReLU.

    Args:
        inputs: channels of the input.
        outputs: channels of the output. A bottleneck has a quarter of them inside.
        preactivated: False leaves out the first norm and ReLU: in the first unit, as the stem ends with them.
        keep_activations: False is for a low peak. A replay then computes the outputs of norm and ReLU once more for
            their gradient, and the gradient of the first norm takes longer.
        kept_convs: numbers of the convolutions whose output the forward pass keeps for the replay.
        drop_path: leaves it out for some examples; None for none.
        numerics: of its input, computation and output, as for the shortcuts.
    """

    def __init__(
        self,
        init: Initializer,
        norm: str,
        inputs: int,
        outputs: int,
        *,
        stride: int = 1,
        bottleneck: bool,
        drop_path: DropPath | None = None,
        preactivated: bool = True,
        keep_activations: bool = True,
        kept_convs: Collection[int] = (),
        numerics: Numerics = FLOATS_ONLY,
    ):
        super().__init__()
        self.keep_activations, self.kept_convs = keep_activations, kept_convs
        self.drop_path, self.numerics = drop_path, numerics
        self.activations, self.convs = [], []
        for number, (size, read, given) in enumerate(conv_shapes(inputs, outputs, bottleneck)):
            self.activations.append(NormReLU(init, norm, read) if number or preactivated else None)
            self.convs.append(Conv(init, size, read, given, stride if number == 0 else 1))

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        for layer in self._layers:
            x = layer(x, mode)
        return x

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        return chain_pullback(self._layers, x, mode)

    @property
    def _layers(self) -> list[Module]:
        last = len(self.convs) - 1
        layers: list[Module] = [
            NormReLUConv(
                activation,
                conv,
                replace(
                    self.numerics,
                    reads=FLOATS if number > 0 else self.numerics.reads,
                    adds_to=FLOATS if number < last else self.numerics.adds_to,
                ),
                self.keep_activations,
                keep_output=number in self.kept_convs,
                low_peak=number == 0 and not self.keep_activations,
            )
            for number, (activation, conv) in enumerate(zip(self.activations, self.convs, strict=True))
        ]
        return layers if self.drop_path is None else [*layers, self.drop_path]


class Projection(tf.Module):
    """1x1 convolution: the shortcut of bottleneck units that change shape."""

    def __init__(self, init: Initializer, inputs: int, outputs: int, stride: int, numerics: Numerics = FLOATS_ONLY):
        super().__init__()
        self.conv = Conv(init, 1, inputs, outputs, stride)
        self._layer = NormReLUConv(None, self.conv, numerics)

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        return self._layer(x, mode)

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        return self._layer.pullback(x, mode)


class PoolAndPad(tf.Module):
    """Average pooling, then zero channels on both sides: the shortcut of basic units that change shape."""

    def __init__(self, inputs: int, outputs: int, stride: int, numerics: Numerics = FLOATS_ONLY):
        super().__init__()
        self.stride, self.numerics = stride, numerics
        missing = outputs - inputs
        self.padding = (missing // 2, missing - missing // 2)

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        return self._pool_and_pad(self._read(self.numerics.reads.for_mode(mode).differentiable_read, x, mode))

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        values = self._read(self.numerics.reads.for_mode(mode).read, x, mode)
        return tape_pullback(lambda values, _: self._pool_and_pad(values), values, mode)

    def _read(self, read: Callable[..., tf.Tensor], x: tf.Tensor, mode: Mode) -> tf.Tensor:
        """Return the values of x times the factor of the output. Sums and means are as exact with it as without."""
        dtype = self.numerics.dtype(x)
        _, factor = self.numerics.factors(x, mode)
        return read(x, dtype, factor) if self.numerics.reads.bits else times(read(x, dtype), factor)

    def _pool_and_pad(self, x: tf.Tensor) -> tf.Tensor:
        if self.stride > 1:
            x = tf.nn.avg_pool2d(x, self.stride, self.stride, "SAME")  # as many as the convolution gives
        return tf.pad(x, [[0, 0], [0, 0], [0, 0], self.padding])


def build_shortcut(
    init: Initializer,
    inputs: int,
    outputs: int,
    stride: int,
    bottleneck: bool,
    numerics: Numerics = FLOATS_ONLY,
) -> Projection | PoolAndPad | None:
    """Return the shortcut of a unit. None is the identity."""
    if inputs == outputs and stride == 1:
        return None
    if bottleneck:
        return Projection(init, inputs, outputs, stride, numerics)
    return PoolAndPad(inputs, outputs, stride, numerics)


class Stem(tf.Module):
    """The first convolution with norm and ReLU: 3x3 (`cifar`), or 7x7/2 and 3x3/2 max-pooling (`imagenet`).

    Args:
        channels: channels of the images.
        outputs: channels of the output.
        parts: number of stems that together stand for one with parts * outputs channels (see Initializer.conv).
    """

    def __init__(self, init: Initializer, norm: str, stem: str, channels: int, outputs: int, parts: int = 1):
        super().__init__()
        self.pooled = stem == "imagenet"
        size, stride = (7, 2) if self.pooled else (3, 1)
        self.conv = Conv(init, size, channels, outputs, stride, parts=parts)
        self.norm = NORMS[norm](init, outputs)

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        x = self.norm(self.conv(x), mode)
        if self.pooled:  # commutes with ReLU, which then has a quarter of the values to rectify
            x = tf.nn.max_pool2d(x, 3, 2, "SAME")
        return rectify(x)


def with_norm_momentum(model: AnyModel, momentum: float) -> AnyModel:
    """Set the momentum of a model's batch normalisations. Return the model."""
    for norm in model.norms:
        norm.momentum = momentum
    return model


class Head(tf.Module):
    """Features to logits: norm, ReLU, global average pooling, dense.

    Average and logits have the dtype of the variables, because both are cheap and bfloat16 would lose bits.
    """

    def __init__(self, init: Initializer, norm: str, channels: int, classes: int):
        super().__init__()
        self.activation = NormReLU(init, norm, channels)
        self.dense = Dense(init, channels, classes)
        self.dtype = init.dtype

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        x = self.activation(x, mode)  # [N, H, W, C]
        return self.dense.predict(tf.reduce_mean(tf.cast(x, self.dtype), axis=[1, 2]), mode)  # [N, classes]
