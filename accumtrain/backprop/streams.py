"""Streams that are exact to the bit, for reversible units of any functions of floats.

A model begins with `TwoStreams`, goes on with a `Stage` of units from `couple`, and ends with `JoinStreams`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import tensorflow as tf

from accumtrain.backprop.config import SNAP_BITS
from accumtrain.backprop.fixed_point import INTEGERS, FixedPoint
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.pullback import Module
from accumtrain.backprop.segments import Coupling, OnStreams, Segment


def couple(f: Module, g: Module, snap_bits: int = SNAP_BITS, *, checks_range: bool = True) -> Coupling:
    """Return the reversible unit y1 = x1 + f(x2), y2 = x2 + g(y1), which is reversed to the bit.

    Args:
        f: a tf.Module that is called with (values [N, ..., C], mode). It takes float32 or float64, and returns floats
            of that shape.
        g: another one.
        snap_bits: bits behind the binary point of the streams, which must stay below 2^(30 - snap_bits).
        checks_range: no update is made if a stream is beyond that. The last unit of a stage must check it.

    Raises:
        ValueError: `snap_bits` is no whole number from 0 to 26. Or, in a call of the unit, f or g returns something
            else than floats of the shape of its input.
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
        values = self.numbers.for_mode(mode).differentiable_read(x)
        y = self.function(values, mode)
        if not (tf.is_tensor(y) and y.dtype.is_floating and y.shape.is_compatible_with(values.shape)):
            raise ValueError(
                f"{getattr(self.function, '__name__', type(self.function).__name__)} makes {_describe(y)} of "
                f"{_describe(values)}, but a sum with the other stream needs floats of the shape of its input"
            )
        return y


class TwoStreams(tf.Module):
    """Two equal streams of values [N, ..., C], float32 or float64. Others raise ValueError."""

    def __init__(self, snap_bits: int = SNAP_BITS):
        super().__init__()
        self.numbers = FixedPoint(snap_bits)

    def __call__(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, tf.Tensor]:
        if x.dtype not in INTEGERS:
            raise ValueError(f"TwoStreams got {_describe(x)}, but takes float32 or float64; cast it before")
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


def check_streams(segments: Sequence[Segment]) -> None:
    """Raise ValueError if a layer reads streams as other numbers than those that the layer before wrote."""
    layers = chain.from_iterable(getattr(segment, "layers", getattr(segment, "units", ())) for segment in segments)
    written: FixedPoint | None = None
    for layer in layers:
        numbers = getattr(layer, "numbers", None)
        if written is None or isinstance(layer, TwoStreams):
            written = numbers
        elif numbers not in (None, written):
            raise ValueError(
                f"{type(layer).__name__} has snap_bits={numbers.bits}, but its streams have {written.bits}; give "
                "TwoStreams, all units and JoinStreams the same"
            )
        if isinstance(layer, JoinStreams):
            written = None


def _describe(x: Any) -> str:
    return f"{x.dtype.name} {x.shape}" if tf.is_tensor(x) else repr(x)
