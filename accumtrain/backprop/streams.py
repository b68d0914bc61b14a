"""Streams that are exact to the bit, for reversible units of any functions of floats.

A model begins with `TwoStreams`, goes on with a `Stage` of units from `couple`, and ends with `JoinStreams`.
"""

from __future__ import annotations

import tensorflow as tf

from accumtrain.backprop.fixed_point import FixedPoint
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.pullback import Module
from accumtrain.backprop.segments import Coupling, OnStreams

SNAP_BITS = 22


def couple(f: Module, g: Module, snap_bits: int = SNAP_BITS, *, checks_range: bool = True) -> Coupling:
    """Return the reversible unit y1 = x1 + f(x2), y2 = x2 + g(y1), which is reversed to the bit.

    Args:
        f: a tf.Module that is called with (values [N, ..., C], mode). It takes float32 or float64, and returns floats
            of that shape.
        g: another one.
        snap_bits: bits behind the binary point of the streams, which must stay below 2^(30 - snap_bits).
        checks_range: no update is made if a stream is beyond that. The last unit of a stage must check it.
    """
    numbers = FixedPoint(snap_bits)
    first, second = (OnStreams(_OfValues(function, numbers), numbers, scales=False) for function in (f, g))
    return Coupling(first, second, numbers=numbers, checks_range=checks_range)


class _OfValues(tf.Module):
    """A function of the values of a stream."""

    def __init__(self, function: Module, numbers: FixedPoint):
        super().__init__()
        self.function, self.numbers = function, numbers

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        return self.function(self.numbers.for_mode(mode).differentiable_read(x), mode)


class TwoStreams(tf.Module):
    """Two equal streams of values [N, ..., C], float32 or float64."""

    def __init__(self, snap_bits: int = SNAP_BITS):
        super().__init__()
        self.numbers = FixedPoint(snap_bits)

    def __call__(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, tf.Tensor]:
        numbers = self.numbers.for_mode(mode)
        stream = numbers.differentiable_encode(x * tf.cast(numbers.scale(x.dtype), x.dtype))
        return stream, tf.identity(stream)


class JoinStreams(tf.Module):
    """The values of two streams side by side, [N, ..., 2 C]."""

    def __init__(self, snap_bits: int = SNAP_BITS):
        super().__init__()
        self.numbers = FixedPoint(snap_bits)

    def __call__(self, x: tuple[tf.Tensor, tf.Tensor], mode: Mode) -> tf.Tensor:
        read = self.numbers.for_mode(mode).differentiable_read
        return tf.concat([read(stream) for stream in x], axis=-1)
