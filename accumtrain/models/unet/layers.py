"""The layers of U-Nets: convolutions with norm and ReLU, changes of size, the logits of pixels."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.pullback import Gradients, Module, Pullback
from accumtrain.models.layers import Bias, Conv, Initializer, Numerics
from accumtrain.models.resnet.norm_relu_conv import NormReLU, NormReLUConv


class ConvNormReLU(tf.Module):
    """The function relu(norm(conv(x))) with a 3x3 convolution."""

    def __init__(self, init: Initializer, norm: str, inputs: int, outputs: int):
        super().__init__()
        self.conv, self.activation = Conv(init, 3, inputs, outputs), NormReLU(init, norm, outputs)

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        return self.activation(self.conv(x), mode)

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        convolved, conv_backward = self.conv.pullback(x, mode)
        y, activation_backward = self.activation.pullback(convolved, mode)

        def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
            d_convolved, norm_gradients = activation_backward(d_y, y)
            d_x, kernel_gradients = conv_backward(d_convolved, x)
            return d_x, norm_gradients + kernel_gradients

        return y, backward


class NormedConv(tf.Module):
    """The function conv(relu(norm(x))) with one convolution. A `norm` of None leaves out norm and ReLU.

    Args:
        size: height and width of the kernel.
        low_peak: memory peaks here, so the gradient of the norm may take longer.
    """

    def __init__(
        self,
        init: Initializer,
        norm: str | None,
        size: int,
        inputs: int,
        outputs: int,
        numerics: Numerics,
        *,
        low_peak: bool = False,
    ):
        super().__init__()
        self.activation = NormReLU(init, norm, inputs) if norm else None
        self.conv = Conv(init, size, inputs, outputs)
        self._layer = NormReLUConv(self.activation, self.conv, numerics, low_peak=low_peak)

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        return self._layer(x, mode)

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        return self._layer.pullback(x, mode)


class ConcatUpConv(tf.Module):
    """A 2x2 transposed convolution of the lower map, behind the channels of the skip connection."""

    def __init__(self, init: Initializer, inputs: int, outputs: int):
        super().__init__()
        self.conv = Conv(init, 1, inputs, 4 * outputs)

    def __call__(self, x: tuple[tf.Tensor, tf.Tensor], mode: Mode) -> tf.Tensor:
        low, skip = x
        y = double_size(self.conv(low), mode)
        for cut in layers_to_cut(low, skip):
            y = cut(y, mode)
        return tf.concat([skip, y], axis=-1)


class PixelHead(tf.Module):
    """The logits of each pixel [N, H, W, classes] in the dtype of the variables, by a 1x1 convolution with bias."""

    def __init__(self, init: Initializer, channels: int, classes: int):
        super().__init__()
        self.conv, self.bias, self.dtype = Conv(init, 1, channels, classes), Bias(init, classes), init.dtype

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        return self.bias(self.conv(tf.cast(x, self.dtype)))


def pool_beside(x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, tf.Tensor]:
    """Return x after 2x2 max-pooling, and x as the skip connection. An odd row or column is pooled alone."""
    return tf.nn.max_pool2d(x, 2, 2, "SAME"), x


def double_size(x: tf.Tensor, mode: Mode) -> tf.Tensor:
    """Return the map of twice the height and width. The channels of a pixel [4 C] become those of 2x2 pixels.

    Behind a 1x1 convolution it makes a transposed one of 2x2 with stride 2.
    """
    return tf.nn.depth_to_space(x, 2)


def layers_to_cut(low: tf.Tensor, like: tf.Tensor) -> Sequence[Module]:
    """Return the layers that cut a map of twice the size of `low` to the height and width of `like`."""
    sizes = low.shape[1:3], like.shape[1:3]
    if all(size.is_fully_defined() for size in sizes) and [2 * side for side in sizes[0]] == list(sizes[1]):
        return []
    height, width = (like.shape[axis] or tf.shape(like)[axis] for axis in (1, 2))
    return [lambda x, _: x[:, :height, :width]]
