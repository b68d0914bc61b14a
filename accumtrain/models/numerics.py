"""In which numbers a function between two streams computes."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from accumtrain.backprop.fixed_point import FLOATS, FixedPoint
from accumtrain.backprop.mode import Mode


@dataclass(frozen=True)
class Numerics:
    """What a function reads, computes in, and adds to.

    Attributes:
        compute_dtype: dtype of its convolutions; None is that of the input.
        reads: numbers of the stream that it takes; with FLOATS it takes floats.
        adds_to: numbers of the stream to which its output is added; with FLOATS it returns floats.
    """

    compute_dtype: tf.DType | None = None
    reads: FixedPoint = FLOATS
    adds_to: FixedPoint = FLOATS

    def dtype(self, x: tf.Tensor) -> tf.DType:
        """What is computed in, for the input x."""
        return self.compute_dtype or x.dtype

    def factors(self, x: tf.Tensor, mode: Mode) -> tuple[float, float]:
        """What the values that are read of x are multiplied by, and those of the output."""
        reads, adds_to = (numbers.during(mode).factor(self.dtype(x)) for numbers in (self.reads, self.adds_to))
        return reads, adds_to
