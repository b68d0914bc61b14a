"""Streams as exact integers; sums in place; fingerprints of streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.pullback import Streams
from accumtrain.backprop.tracing import after, by_cpu_kernels, is_for_xla, on_gpu

# Streams of a reversible network in fixed point: sums are exact, so x1 = (x1 + F) - F gives the same bits.
#
# A stream of float32 loses bits in every sum. As integers of 32 bits, in units of 2^-bits, it loses none, takes the
# same memory, and with 22 bits is as fine as float32 from 2 on, and finer from 4.


INTEGERS = {tf.float32: tf.int32, tf.float64: tf.int64}
SCALABLE = (tf.float32, tf.bfloat16)  # have exponents for values times 2^bits; float16 has none


@dataclass(frozen=True)
class FixedPoint:
    """Numbers with `bits` bits behind the point (of float64: 32 more, as its integers have 64 bits).

    Streams are held in tensors of dtype float32 (float64) whose bits are those of the integers. Such a tensor is moved
    and kept like any other, but only the methods here may compute with it. Were its dtype int32, tf.GradientTape would
    not go through it, and TensorFlow would compute with it on the host of a GPU.

    What is added to a stream is given as floats times `scale`, a power of two, which changes no bit of them. Functions
    that can do so compute with scaled values from the start, which spares the multiplication. Values are cut off behind
    the last bit, towards 0.

    bits = 0 stands for plain floats, with a scale of 1.
    """

    bits: int

    def during(self, mode: Mode) -> FixedPoint:
        """The numbers of a pass: an evaluation reverses nothing and computes with floats."""
        return self if mode.training else FLOATS

    def scale(self, dtype: tf.DType) -> float:
        """What values are multiplied by in streams of `dtype`."""
        return 2.0 ** (self.bits + (32 if self.bits and dtype == tf.float64 else 0))

    def factor(self, dtype: tf.DType) -> float:
        """What functions that compute in `dtype` may multiply the values by that they read and return."""
        return self.scale(tf.float32) if dtype in SCALABLE else 1.0

    def limit(self, dtype: tf.DType) -> float:
        """Streams must stay below it, else `outside` says so. Integers hold twice as much."""
        return 2.0 ** (8 * dtype.size - 2) / self.scale(dtype)

    # --- without a gradient, for pullbacks ------------------------------------------------------------------------

    def read(self, stream: tf.Tensor, dtype: tf.DType | None = None, factor: float = 1.0) -> tf.Tensor:
        """The values of a stream times `factor`, in `dtype`; None is that of the stream."""
        dtype = dtype or stream.dtype
        if self.bits == 0:
            return tf.cast(stream, dtype)
        ratio = factor / self.scale(stream.dtype)
        if ratio == 1.0:
            return _integers(lambda x: tf.cast(_as_integers(x), dtype), stream)
        wide = dtype if dtype.size > stream.dtype.size else stream.dtype
        return tf.cast(_integers(lambda x: tf.cast(_as_integers(x), wide), stream) * tf.cast(ratio, wide), dtype)

    def encode(self, value: tf.Tensor) -> tf.Tensor:
        """The stream of scaled values, float32 or float64."""
        return value if self.bits == 0 else _integers(lambda x: _as_floats(_cut_off(x, INTEGERS[x.dtype])), value)

    def add(self, stream: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        """The stream plus scaled values of any float dtype."""
        return self._sum(add, stream, value)

    def add_in_place(self, stream: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        """As `add`, with the low peak of memory of backprop/fixed_point.py."""
        return self._sum(add_in_place, stream, value)

    def subtract(self, stream: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        """Undoes `add`, to the bit, with the low peak of memory of backprop/fixed_point.py."""
        return self._sum(subtract, stream, value)

    def _sum(self, sum_: Callable[..., tf.Tensor], stream: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        if self.bits == 0:
            return sum_(stream, value)

        def integer_sum(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            # TensorFlow's own kernels cut off in the sum, which spares memory
            return _as_floats(sum_(_as_integers(x), _cut_off(y, INTEGERS[x.dtype]) if is_for_xla() else y))

        return _integers(integer_sum, stream, value)

    def outside(self, streams: tuple[tf.Tensor, ...]) -> tf.Tensor:
        """Whether a value of a stream has left the range, bool [].

        No sum of a value inside wraps around to one inside, and what is not finite becomes the smallest integer, by XLA
        and by TensorFlow's own kernels on x86 processors, which brings every sum outside. So does what is beyond the
        integers: it becomes the smallest or the largest.
        """

        def beyond(x: tf.Tensor) -> tf.Tensor:
            integers = _as_integers(x)
            limit = 2 ** (8 * x.dtype.size - 2)
            return tf.logical_or(tf.reduce_max(integers) >= limit, tf.reduce_min(integers) < -limit)

        return tf.reduce_any([_integers(beyond, stream) for stream in streams])

    # --- with a gradient, for a tf.GradientTape -------------------------------------------------------------------

    def differentiable_read(self, stream: tf.Tensor, dtype: tf.DType | None = None, factor: float = 1.0) -> tf.Tensor:
        """As `read`. The gradient of a stream is that of its values, in its dtype."""
        if self.bits == 0:
            return tf.cast(stream, dtype or stream.dtype)

        @tf.custom_gradient
        def reading(stream: tf.Tensor) -> tuple[tf.Tensor, Callable]:
            return self.read(stream, dtype, factor), lambda d_value: tf.cast(d_value, stream.dtype) * factor

        return reading(stream)

    def differentiable_encode(self, value: tf.Tensor) -> tf.Tensor:
        """As `encode`, with the gradient of the identity, but for the scale."""
        if self.bits == 0:
            return value

        @tf.custom_gradient
        def encoding(value: tf.Tensor) -> tuple[tf.Tensor, Callable]:
            return self.encode(value), lambda d_stream: d_stream / self.scale(value.dtype)

        return encoding(value)

    def differentiable_add(self, stream: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        """As `add`, with the gradient of a sum, but for the scale."""
        if self.bits == 0:
            return add(stream, value)

        @tf.custom_gradient
        def adding(stream: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, Callable]:
            def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                return d_y, tf.cast(d_y, value.dtype) / self.scale(stream.dtype)

            return self.add(stream, value), backward

        return adding(stream, value)


FLOATS = FixedPoint(0)


def _as_integers(x: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(x, INTEGERS[x.dtype])


def _cut_off(value: tf.Tensor, integer: tf.DType) -> tf.Tensor:
    """Integers of scaled values. XLA would make 0 of NaN."""
    integers = tf.cast(value, integer)
    return tf.where(tf.math.is_finite(value), integers, integer.min) if is_for_xla() else integers


def _as_floats(x: tf.Tensor) -> tf.Tensor:
    """The stream of these integers. For XLA it is read from there, or XLA would keep the integers beside it."""
    stream = tf.bitcast(x, {integer: dtype for dtype, integer in INTEGERS.items()}[x.dtype])
    return after([], stream) if is_for_xla() else stream


def _integers(compute: Callable[..., tf.Tensor], *tensors: Any) -> tf.Tensor:
    """Computes with integers inside. On a GPU XLA does, as TensorFlow's own kernels for int32 run on its host."""
    if on_gpu() and not is_for_xla():
        compute = tf.function(compute, jit_compile=True, autograph=False)
    return compute(*tensors)


# Adds to a tensor a value that may have been computed in a lower precision.


PARTS = 2


def add(stream: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """stream + value, both [N, ...], in the dtype of the stream. Integers take of a float what is before its point."""
    return stream + tf.cast(value, stream.dtype)


def add_in_place(stream: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """As `add`, bit for bit, but with a lower peak of memory.

    On a CPU, a value of lower precision is converted and added in PARTS parts, in place if nothing else reads the
    stream. Converted as a whole, it would take as much memory as the stream. This takes several times as long.
    """
    if value.dtype.size == stream.dtype.size or not by_cpu_kernels():
        return add(stream, value)
    count = value.shape[0] or tf.shape(value)[0]
    for part in range(PARTS):
        first, last = count * part // PARTS, count * (part + 1) // PARTS
        stream = tf.raw_ops.ScatterNdNonAliasingAdd(
            input=stream,
            indices=tf.range(first, last)[:, tf.newaxis],
            updates=tf.cast(after([stream], value)[first:last], stream.dtype),
        )
    return stream


def subtract(stream: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """stream - value, with the low peak of memory of `add_in_place`."""
    same_size = value.dtype.size == stream.dtype.size
    return stream - tf.cast(value, stream.dtype) if same_size else add_in_place(stream, -value)


# A mark of tensors in a few bytes, to see later whether other tensors have the same bits.


def fingerprint_streams(x: Streams) -> tuple[Streams, tf.Tensor | None]:
    """The same tensors, and a mark of their bits, int64 [number of tensors], computed before they are used.

    It is the sum of the bits as integers, which wraps around and does not depend on its order. A change of one number
    changes it; changes of several leave it as it was with a chance of 2^-32 in float32.

    There is no mark, None, on a GPU, where TensorFlow sums integers of 32 bits on the host, and for XLA, which may
    compute a replay in another order than the pass before.

    Args:
        x: of float32 or float64.
    """
    if on_gpu() or is_for_xla():
        return x, None
    integers = [tf.bitcast(each, INTEGERS[each.dtype]) for each in tf.nest.flatten(x)]
    mark = tf.stack([tf.cast(tf.reduce_sum(each), tf.int64) for each in integers])
    return after([mark], x), mark
