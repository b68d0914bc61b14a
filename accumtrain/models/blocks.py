"""Pre-activation residual functions and shortcuts of ResNets and RevNets (He et al. 2016, arXiv:1603.05027)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

import tensorflow as tf

from accumtrain.backprop.fixed_point import FLOATS, FixedPoint
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.model import Model
from accumtrain.backprop.order import after
from accumtrain.backprop.pullback import Gradients, Module, Pullback, chain_pullback, tape_pullback
from accumtrain.models.drop_path import DropPath
from accumtrain.models.layers import Conv, Initializer, times
from accumtrain.models.norms import NORMS

# TensorFlow fuses batch norm with the ReLU behind it for multiples of 4 channels. oneDNN's fused kernel gives the same
# bits with the statistics of a batch, in the first pass, and with known ones, in a replay, for multiples of these only.
FUSED_BLOCK = 8

AnyModel = TypeVar("AnyModel", bound=Model)


class NormReLU(tf.Module):
    """relu(norm(x)), [N, H, W, C]."""

    def __init__(self, init: Initializer, norm: str, channels: int):
        super().__init__()
        self.norm = NORMS[norm](init, channels)
        self._fusible = channels % FUSED_BLOCK == 0

    def __call__(self, x: tf.Tensor, mode: Mode, factor: float = 1.0) -> tf.Tensor:
        return self._relu(self.norm(x, mode, factor))

    def pullback(self, x: tf.Tensor, mode: Mode, factor: float = 1.0) -> tuple[tf.Tensor, Callable]:
        """Returns y and the function from (d_y, y) to the gradients. It takes y, so that y need not be kept for it."""
        normed, norm_backward = self.norm.pullback(x, mode, factor)

        def backward(d_y: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
            return norm_backward(tf.raw_ops.ReluGrad(gradients=d_y, features=y))

        return self._relu(normed), backward

    def _relu(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(x) if self._fusible else tf.maximum(x, tf.zeros([], x.dtype))


class Residual(tf.Module):
    """Two 3x3 convolutions, or the bottleneck of 1x1, 3x3 and 1x1, each after norm and ReLU.

    Args:
        inputs, outputs: numbers of channels. A bottleneck has a quarter of `outputs` inside.
        preactivated: False leaves out the first norm and ReLU: in the first unit, as the stem ends with them.
        keep_activations: a replay keeps the outputs of norm and ReLU; False computes them again for their gradient.
        kept_convs: numbers of the convolutions whose output the forward pass keeps for the replay.
        drop_path: leaves it out for some examples; None for none.
        compute_dtype: dtype of the convolutions; None is that of the input.
        reads: numbers of the stream that it takes; with FLOATS it takes floats.
        adds_to: numbers of the stream to which its output is added; with FLOATS it returns floats.
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
        compute_dtype: tf.DType | None = None,
        reads: FixedPoint = FLOATS,
        adds_to: FixedPoint = FLOATS,
    ):
        super().__init__()
        self.keep_activations, self.kept_convs = keep_activations, kept_convs
        self.drop_path, self.compute_dtype = drop_path, compute_dtype
        self.reads, self.adds_to = reads, adds_to
        inner = outputs // 4 if bottleneck else outputs
        sizes = (1, 3, 1) if bottleneck else (3, 3)
        widths = (inputs, *[inner] * (len(sizes) - 1), outputs)
        self.activations, self.convs = [], []
        for i, size in enumerate(sizes):
            self.activations.append(NormReLU(init, norm, widths[i]) if i or preactivated else None)
            self.convs.append(Conv(init, size, widths[i], widths[i + 1], stride if i == 0 else 1))

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        for layer in self._layers:
            x = layer(x, mode)
        return x

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        return chain_pullback(self._layers, x, mode)

    @property
    def _layers(self) -> list[Module]:
        layers: list[Module] = [
            _NormReLUConv(
                activation,
                conv,
                self.keep_activations,
                self.compute_dtype,
                keep_output=number in self.kept_convs,
                reads=FLOATS if number else self.reads,
                adds_to=FLOATS if number < len(self.convs) - 1 else self.adds_to,
            )
            for number, (activation, conv) in enumerate(zip(self.activations, self.convs, strict=True))
        ]
        return layers if self.drop_path is None else [*layers, self.drop_path]


@dataclass(frozen=True)
class _NormReLUConv:
    """conv(relu(norm(x))), or conv(x) without an activation.

    What it reads from a stream has a factor, which the norm or else the convolution takes along; what is added to one
    gets it from the kernel.
    """

    activation: NormReLU | None
    conv: Conv
    keep_activation: bool
    compute_dtype: tf.DType | None
    keep_output: bool = False
    reads: FixedPoint = FLOATS
    adds_to: FixedPoint = FLOATS

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        dtype, x_factor, activated_factor, factor = self._factors(x, mode)
        x = self.reads.during(mode).differentiable_read(x, dtype, x_factor)
        activated = x if self.activation is None else self.activation(x, mode, x_factor)
        return self.conv(activated, factor / activated_factor)

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        activate_again = mode.replaying and not self.keep_activation
        *_, activated_factor, factor = self._factors(x, mode)
        activated, activation_backward = self._activate(x, mode)
        saved = mode.saved_for_replay(self.conv)
        known = None if saved is None else after([activated], saved)
        y, conv_backward = self.conv.pullback(activated, known, activated_factor, factor / activated_factor)
        if self.keep_output and mode.recording:
            mode.saved[self.conv] = y

        def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
            a, a_backward = activated, activation_backward
            if activate_again:  # from x, which is in memory anyway, so that the cast input is not kept either
                a, a_backward = self._activate(after([d_y], x), mode)
            d_a, kernel_gradients = conv_backward(d_y, a)
            d_x, norm_gradients = a_backward(d_a, a)
            return d_x, kernel_gradients + norm_gradients

        return y, backward

    def _activate(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Callable]:
        dtype, x_factor, *_ = self._factors(x, mode)
        x = self.reads.during(mode).read(x, dtype, x_factor)
        return (x, lambda d_y, _: (d_y, [])) if self.activation is None else self.activation.pullback(x, mode, x_factor)

    def _factors(self, x: tf.Tensor, mode: Mode) -> tuple[tf.DType, float, float, float]:
        """The dtype, and the factors of what is read, of what is activated, and of the output."""
        dtype = self.compute_dtype or x.dtype
        x_factor, factor = (numbers.during(mode).factor(dtype) for numbers in (self.reads, self.adds_to))
        return dtype, x_factor, x_factor if self.activation is None else 1.0, factor


class Projection(tf.Module):
    """1x1 convolution: the shortcut of bottleneck units that change shape. `reads` and `adds_to` as of `Residual`."""

    def __init__(
        self,
        init: Initializer,
        inputs: int,
        outputs: int,
        stride: int,
        compute_dtype: tf.DType | None = None,
        reads: FixedPoint = FLOATS,
        adds_to: FixedPoint = FLOATS,
    ):
        super().__init__()
        self.conv = Conv(init, 1, inputs, outputs, stride)
        self._layer = _NormReLUConv(None, self.conv, True, compute_dtype, reads=reads, adds_to=adds_to)

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        return self._layer(x, mode)

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        return self._layer.pullback(x, mode)


class PoolAndPad(tf.Module):
    """Average pooling, then zero channels on both sides: the shortcut of basic units that change shape.

    `reads` and `adds_to` as of `Residual`.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        compute_dtype: tf.DType | None = None,
        reads: FixedPoint = FLOATS,
        adds_to: FixedPoint = FLOATS,
    ):
        super().__init__()
        self.stride, self.compute_dtype = stride, compute_dtype
        self.reads, self.adds_to = reads, adds_to
        missing = outputs - inputs
        self.padding = (missing // 2, missing - missing // 2)

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        numbers = self.reads.during(mode)
        return self._pool_and_pad(self._read(numbers.differentiable_read, x, mode))

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        values = self._read(self.reads.during(mode).read, x, mode)
        return tape_pullback(lambda values, _: self._pool_and_pad(values), values, mode)

    def _read(self, read: Callable[..., tf.Tensor], x: tf.Tensor, mode: Mode) -> tf.Tensor:
        """The values of x times the factor of the output: sums and means are as exact with it as without."""
        dtype = self.compute_dtype or x.dtype
        factor = self.adds_to.during(mode).factor(dtype)
        return read(x, dtype, factor) if self.reads.bits else times(read(x, dtype), factor)

    def _pool_and_pad(self, x: tf.Tensor) -> tf.Tensor:
        if self.stride > 1:
            x = tf.nn.avg_pool2d(x, self.stride, self.stride, "SAME")  # as many as the convolution gives
        return tf.pad(x, [[0, 0], [0, 0], [0, 0], self.padding])


def shortcut(
    init: Initializer,
    inputs: int,
    outputs: int,
    stride: int,
    bottleneck: bool,
    compute_dtype: tf.DType | None = None,
    reads: FixedPoint = FLOATS,
    adds_to: FixedPoint = FLOATS,
) -> Projection | PoolAndPad | None:
    """The shortcut of a unit; None is the identity."""
    if inputs == outputs and stride == 1:
        return None
    if bottleneck:
        return Projection(init, inputs, outputs, stride, compute_dtype, reads, adds_to)
    return PoolAndPad(inputs, outputs, stride, compute_dtype, reads, adds_to)


class Stem(tf.Module):
    """The first convolution with norm and ReLU: 3x3 (`cifar`), or 7x7/2 and 3x3/2 max-pooling (`imagenet`).

    Args:
        channels, outputs: channels of the images and of the output.
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
        return tf.nn.relu(x)


def with_norm_momentum(model: AnyModel, momentum: float) -> AnyModel:
    """The model, after the momentum of its batch normalisations is set."""
    for norm in model.norms:
        norm.momentum = momentum
    return model
