"""Streams of a reversible network in fixed point, sums in place, and fingerprints of streams.

A stream of float32 loses bits in every sum. As integers of 32 bits, in units of 2^-bits, it loses none, so
x1 = (x1 + F) - F has the same bits. It takes the same memory. With 22 bits it is as fine as float32 from 2 on, and
finer from 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from accumtrain.backprop.config import MOST_SNAP_BITS, SNAP_BITS
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.pullback import Streams
from accumtrain.backprop.tracing import after, by_cpu_kernels, is_for_xla, on_gpu

INTEGERS = {tf.float32: tf.int32, tf.float64: tf.int64}
RESTS = {tf.float32: tf.int8, tf.float64: tf.int16}  # a float has so few bits less than the integers below the limit
SCALABLE = (tf.float32, tf.bfloat16)  # float16 has no exponents for values times 2^bits
PARTS = 2  # of a sum in place


@dataclass(frozen=True)
class FixedPoint:
    """Numbers with `bits` bits behind the point (of float64: 32 more, as its integers have 64 bits).

    Streams are held in tensors of dtype float32 (float64) whose bits are those of the integers. Such a tensor is moved
    and kept like any other, but only the methods here may compute with it. With the dtype int32, tf.GradientTape would
    not go through it, and TensorFlow would compute with it on the host of a GPU.

    A value that is added to a stream is given as floats times `scale`, a power of two, which changes no bit of them.
    Functions that can do so compute with scaled values from the start, which spares the multiplication. Values are cut
    off behind the last bit, towards 0.

    bits = 0 stands for plain floats, with a scale of 1.

    Raises:
        ValueError: `bits` is no whole number from 0 to 26.
    """

    bits: int

    def __post_init__(self) -> None:
        if isinstance(self.bits, bool) or not isinstance(self.bits, int) or not 0 <= self.bits <= MOST_SNAP_BITS:
            raise ValueError(
                f"snap_bits={self.bits!r}: must be a whole number from 0 to {MOST_SNAP_BITS}; use {SNAP_BITS}, or 0 "
                "for streams of floats"
            )

    def for_mode(self, mode: Mode) -> FixedPoint:
        """Return the numbers of a pass. An evaluation reverses nothing and computes with floats."""
        return self if mode.training else FLOATS

    def scale(self, dtype: tf.DType) -> float:
        """Return the factor of values in streams of `dtype`."""
        return 2.0 ** (self.bits + (32 if self.bits and dtype == tf.float64 else 0))

    def factor(self, dtype: tf.DType) -> float:
        """Return the factor by which functions that compute in `dtype` may scale what they read and return."""
        return self.scale(tf.float32) if dtype in SCALABLE else 1.0

    def limit(self, dtype: tf.DType) -> float:
        """Return the bound of streams of `dtype`. Integers hold twice as much."""
        return 2.0 ** (8 * dtype.size - 2) / self.scale(dtype)

    # ---- without a gradient, for pullbacks ----

    def read(self, stream: tf.Tensor, dtype: tf.DType | None = None, factor: float = 1.0) -> tf.Tensor:
        """Return the values of a stream times `factor`, in `dtype`. None is the dtype of the stream."""
        dtype = dtype or stream.dtype
        if self.bits == 0:
            return tf.cast(stream, dtype)
        ratio = factor / self.scale(stream.dtype)
        if ratio == 1.0:
            return _integers(lambda x: tf.cast(_as_integers(x), dtype), stream)
        wide = dtype if dtype.size > stream.dtype.size else stream.dtype
        return tf.cast(_integers(lambda x: tf.cast(_as_integers(x), wide), stream) * tf.cast(ratio, wide), dtype)

    def encode(self, value: tf.Tensor) -> tf.Tensor:
        """Return the stream of scaled values, float32 or float64."""
        return value if self.bits == 0 else _integers(lambda x: _as_floats(_cut_off(x, INTEGERS[x.dtype])), value)

    def add(self, stream: tf.Tensor, value: tf.Tensor, *, in_place: bool = False) -> tf.Tensor:
        """Return the stream plus scaled values of any float dtype. `in_place` is that of the function `add`."""
        return self._sum(partial(add, in_place=in_place), stream, value)

    def subtract(self, stream: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        """Undo `add`, to the bit, with the low peak of memory of a sum in place."""
        return self._sum(subtract, stream, value)

    def _sum(self, sum_: Callable[..., tf.Tensor], stream: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        if self.bits == 0:
            return sum_(stream, value)

        def integer_sum(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            # TensorFlow's own kernels cut off in the sum, to spare memory
            return _as_floats(sum_(_as_integers(x), _cut_off(y, INTEGERS[x.dtype]) if is_for_xla() else y))

        return _integers(integer_sum, stream, value)

    def rest(self, stream: tf.Tensor) -> tf.Tensor:
        """Return what `read` rounds off within the range, in a fourth of a stream's memory: int8, of float64 int16."""
        if self.bits == 0:
            return tf.zeros([], tf.int8)

        def left(x: tf.Tensor) -> tf.Tensor:
            integers = _as_integers(x)
            return tf.cast(integers - tf.cast(tf.cast(integers, x.dtype), integers.dtype), RESTS[x.dtype])

        return _integers(left, stream)

    def restore(self, value: tf.Tensor, rest: tf.Tensor) -> tf.Tensor:
        """Return the stream of which `value` was read and `rest` was left."""
        if self.bits == 0:
            return value

        def stream(value: tf.Tensor, rest: tf.Tensor) -> tf.Tensor:
            integer = INTEGERS[value.dtype]
            return _as_floats(tf.cast(value * self.scale(value.dtype), integer) + tf.cast(rest, integer))

        return _integers(stream, value, rest)

    def reach(self, streams: tuple[tf.Tensor, ...]) -> tf.Tensor:
        """Return the largest magnitude in the streams as a share of their limit, float32 []. 1 is out of the range.

        No sum of a value inside wraps around to one inside. A value that is not finite becomes the smallest integer, by
        XLA and by TensorFlow's own kernels on x86 processors. A value beyond the integers becomes the smallest or the
        largest. Both bring every sum outside.
        """

        def share(x: tf.Tensor) -> tf.Tensor:
            integers = _as_integers(x)
            largest = tf.maximum(tf.reduce_max(integers), -1 - tf.reduce_min(integers))
            return tf.cast(largest // 2 ** (8 * x.dtype.size - 24), tf.float32) / 2**22  # float32 has 24 bits

        return tf.reduce_max([_integers(share, stream) for stream in streams])

    # ---- with a gradient, for a tf.GradientTape ----

    def differentiable_read(self, stream: tf.Tensor, dtype: tf.DType | None = None, factor: float = 1.0) -> tf.Tensor:
        """Return the same as `read`. The gradient of a stream is that of its values, in its dtype."""
        if self.bits == 0:
            return tf.cast(stream, dtype or stream.dtype)
        read = partial(self.read, dtype=dtype, factor=factor)
        return _with_gradient(read, lambda d_value: times(tf.cast(d_value, stream.dtype), factor), stream)

    def differentiable_encode(self, value: tf.Tensor) -> tf.Tensor:
        """Return the same as `encode`, with the gradient of the identity, but for the scale."""
        if self.bits == 0:
            return value
        return _with_gradient(self.encode, lambda d_stream: d_stream / self.scale(value.dtype), value)

    def differentiable_add(self, stream: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
        """Return the same as `add`, with the gradient of a sum, but for the scale."""
        if self.bits == 0:
            return add(stream, value)

        def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return d_y, tf.cast(d_y, value.dtype) / self.scale(stream.dtype)

        return _with_gradient(self.add, backward, stream, value)


FLOATS = FixedPoint(0)


def times(x: tf.Tensor, factor: float) -> tf.Tensor:
    """Return x * factor, a power of two, so that no bit is lost. A factor of 1 takes no operation."""
    return x if factor == 1.0 else x * tf.cast(factor, x.dtype)


def _with_gradient(compute: Callable[..., tf.Tensor], backward: Callable, *tensors: tf.Tensor) -> tf.Tensor:
    """Return compute(*tensors), which `backward` differentiates."""
    return tf.custom_gradient(lambda *tensors: (compute(*tensors), backward))(*tensors)


def _as_integers(x: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(x, INTEGERS[x.dtype])


def _cut_off(value: tf.Tensor, integer: tf.DType) -> tf.Tensor:
    """Return the integers of scaled values. XLA would make 0 of NaN."""
    integers = tf.cast(value, integer)
    return tf.where(tf.math.is_finite(value), integers, integer.min) if is_for_xla() else integers


def _as_floats(x: tf.Tensor) -> tf.Tensor:
    """Return the stream of these integers. XLA would keep them beside it without the order."""
    stream = tf.bitcast(x, {integer: dtype for dtype, integer in INTEGERS.items()}[x.dtype])
    return after([], stream) if is_for_xla() else stream


def _integers(compute: Callable[..., tf.Tensor], *tensors: Any) -> tf.Tensor:
    """Compute with integers inside. On a GPU XLA does so, because TensorFlow's kernels for int32 run on its host."""
    if on_gpu() and not is_for_xla():
        compute = tf.function(compute, jit_compile=True, autograph=False)
    return compute(*tensors)


# ---- sums of a stream and a value that may have a lower precision ----


def add(stream: tf.Tensor, value: tf.Tensor, *, in_place: bool = False) -> tf.Tensor:
    """Return stream + value, both [N, ...], in the dtype of the stream. Integers lose the fraction of a float.

    Args:
        in_place: take less memory for the same bits. On a CPU, a value of lower precision is then converted and added
            in PARTS parts, in place if nothing else reads the stream. Converted as a whole, it takes as much memory as
            the stream. The sum takes several times as long.
    """
    if not in_place or value.dtype.size == stream.dtype.size or not by_cpu_kernels():
        return stream + tf.cast(value, stream.dtype)
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
    """Return stream - value, with the low peak of memory of a sum in place."""
    if value.dtype.size == stream.dtype.size:
        return stream - tf.cast(value, stream.dtype)
    return add(stream, -value, in_place=True)


# ---- fingerprints ----


def fingerprint_streams(x: Streams) -> tuple[Streams, tf.Tensor | None]:
    """Return the same tensors, float32 or float64, and a fingerprint of their bits, int64 [number of tensors].

    It is computed before they are used, to see later whether other tensors have the same bits. It is the sum of the
    bits as integers, which wraps around and does not depend on its order. A change of one number changes it; changes of
    several leave it as it was with a chance of 2^-32 in float32.

    The fingerprint is None on a GPU, where TensorFlow sums integers of 32 bits on the host. It is None for XLA, which
    may compute a replay in another order than the pass before.
    """
    if on_gpu() or is_for_xla():
        return x, None
    integers = [tf.bitcast(stream, INTEGERS[stream.dtype]) for stream in tf.nest.flatten(x)]
    fingerprint = tf.stack([tf.cast(tf.reduce_sum(stream), tf.int64) for stream in integers])
    return after([fingerprint], x), fingerprint
