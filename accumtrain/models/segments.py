"""A model is a chain of segments; each says how its activations reach the backward pass.

memory      what is kept of the forward pass            backward
store       every activation                            plain back-propagation
recompute   the segment's input                         the segment is computed again, then back-propagated
reverse     the output (and the input of a stage        each unit's input is computed from its output
            whose first unit can't be reversed)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from accumtrain.models.add import add, add_in_place
from accumtrain.models.mode import EVALUATION, Mode
from accumtrain.models.pullback import Gradients, Pullback, Streams, chained, pullback


class Chain(tf.Module):
    """Layers applied one after the other, each a function of (x, mode). memory: `store` or `recompute`."""

    def __init__(self, memory: str, layers: Sequence[Callable[[Any, Mode], Any]]):
        super().__init__()
        self.memory, self.layers = memory, list(layers)

    def __call__(self, x: Streams, mode: Mode) -> Streams:
        for layer in self.layers:
            x = layer(x, mode)
        return x

    def pullback(self, x: Streams, mode: Mode) -> tuple[Streams, Pullback]:
        return chained(self.layers, x, mode)


class Coupling(tf.Module):
    """One reversible unit (Gomez et al. 2017, arXiv:1707.04585): y1 = s1(x1) + F(x2), y2 = s2(x2) + G(y1).

    Invertible when both shortcuts are the identity (None). F, G and the shortcuts return values on the snap grid; F
    and G may do so in a lower precision than that of the streams.
    """

    def __init__(
        self,
        f: Callable[[tf.Tensor, Mode], tf.Tensor],
        g: Callable[[tf.Tensor, Mode], tf.Tensor],
        shortcuts: tuple[Callable[[tf.Tensor, Mode], tf.Tensor], Callable[[tf.Tensor, Mode], tf.Tensor]] | None = None,
    ):
        super().__init__()
        self.f, self.g, self.shortcuts = f, g, shortcuts

    @property
    def invertible(self) -> bool:
        return self.shortcuts is None

    def __call__(self, x: tuple[tf.Tensor, tf.Tensor], mode: Mode) -> tuple[tf.Tensor, tf.Tensor]:
        x1, x2 = x
        f = self.f(x2, mode)
        if self.shortcuts is not None:
            x1, x2 = self.shortcuts[0](x1, mode), self.shortcuts[1](x2, mode)
        y1 = add(x1, f)
        return y1, add(x2, self.g(y1, mode))

    def pullback(self, x: tuple[tf.Tensor, tf.Tensor], mode: Mode) -> tuple[Streams, Pullback]:
        x1, x2 = x
        first, second = self.shortcuts or (None, None)
        plus = add_in_place if mode.replaying else add
        f, f_backward = pullback(self.f, x2, mode)
        across1, backward1 = pullback(first, x1, mode)
        across2, backward2 = pullback(second, x2, mode)
        y1 = plus(across1, f)
        g, g_backward = pullback(self.g, y1, mode)

        def backward(d_y: tuple[tf.Tensor, tf.Tensor]) -> tuple[Streams, Gradients]:
            d_y1, d_y2 = d_y
            d_g, of_g = g_backward(d_y2)
            d_y1 = plus(d_y1, d_g)
            d_f, of_f = f_backward(d_y1)
            d_x1, of_first = backward1(d_y1)
            d_across2, of_second = backward2(d_y2)
            return (d_x1, plus(d_across2, d_f)), of_g + of_f + of_first + of_second

        return (y1, plus(across2, g)), backward


class Stage(tf.Module):
    """Reversible units in a row; only the first may be one that can't be reversed, and then its input is kept."""

    def __init__(self, memory: str, units: Sequence[Coupling]):
        super().__init__()
        self.memory, self.units = memory, list(units)
        if not all(unit.invertible for unit in self.units[1:]):
            raise ValueError("only the first unit of a stage may change the shape of the streams")

    def __call__(self, x: Streams, mode: Mode) -> Streams:
        for unit in self.units:
            x = unit(x, mode)
        return x

    def pullback(self, x: Streams, mode: Mode) -> tuple[Streams, Pullback]:
        return chained(self.units, x, mode)


Segment = Chain | Stage  # and KerasSegment, which stays outside to keep the import of Keras away


class Model(tf.Module):
    """A chain of segments from images to logits.

    Args:
        segments: the first takes images [N, H, W, C] in `compute_dtype`, the last gives logits [N, classes].
        compute_dtype: dtype of convolutions and matrix products.
    """

    def __init__(self, segments: Sequence[Segment], compute_dtype: tf.DType):
        super().__init__()
        self.segments, self.compute_dtype = list(segments), compute_dtype

    def __call__(self, images: tf.Tensor, mode: Mode = EVALUATION) -> tf.Tensor:
        x: Streams = tf.cast(images, self.compute_dtype)
        for segment in self.segments:
            x = segment(x, mode)
        return x  # [N, classes], float32 or float64

    @property
    def norms(self) -> list:
        """Every batch normalisation, in a fixed order."""
        return [module for module in self.submodules if hasattr(module, "moving_mean")]

    @property
    def decayed(self) -> list[bool]:
        """For each trainable variable: does weight decay apply to it (convolution and dense kernels only)?"""
        return ["kernel" in variable.name.rsplit("/", 1)[-1] for variable in self.trainable_variables]

    @property
    def params(self) -> int:
        """Number of trainable values."""
        return sum(int(tf.size(variable)) for variable in self.trainable_variables)
