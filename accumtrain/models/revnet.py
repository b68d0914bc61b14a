"""Reversible residual networks (Gomez et al. 2017, arXiv:1707.04585), reversed to the bit.

Both streams are float32 (float64 when the variables are) whatever dtype F and G compute in, and are kept on a grid
of multiples of 2^-snap_bits. Sums of such numbers below 2^(24 - snap_bits) are exact in float32, so
x1 = y1 - F(x2) gives back the very bits that went in, at any depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.model import Model
from accumtrain.backprop.order import after
from accumtrain.backprop.pullback import Gradients, Pullback, pullback
from accumtrain.backprop.segments import Chain, Coupling, Segment, Stage
from accumtrain.kinds.models import RevNetConfig
from accumtrain.models.blocks import Residual, Stem, shortcut
from accumtrain.models.head import Head
from accumtrain.models.spec import ModelSpec


def snap(x: tf.Tensor, bits: int) -> tf.Tensor:
    """Rounds to multiples of 2^-bits; the gradient passes straight through. bits = 0 leaves x alone."""
    if bits == 0:
        return x

    @tf.custom_gradient
    def rounded(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return _rounded(x, bits), lambda upstream: upstream

    return rounded(x)


def _rounded(x: tf.Tensor, bits: int) -> tf.Tensor:
    if bits == 0:
        return x
    wide = tf.cast(x, tf.float32) if x.dtype == tf.float16 else x  # 2^bits times it overflows
    return tf.cast(tf.round(wide * 2.0**bits) / 2.0**bits, x.dtype)


class OnGrid(tf.Module):
    """Returns what `function` computes, in whatever precision, on the grid; it and its gradient in `dtype`."""

    def __init__(self, function: Callable[[tf.Tensor, Mode], tf.Tensor], bits: int, dtype: tf.DType):
        super().__init__()
        self.function, self.bits, self.dtype = function, bits, dtype

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        with tf.control_dependencies([x]):  # or the kernels of all units are cast, and held, from the first moment
            return snap(tf.cast(self.function(x, mode), self.dtype), self.bits)  # rounding bfloat16 takes twice as long

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        with tf.control_dependencies([x]):
            y, function_backward = pullback(self.function, x, mode)

            def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
                d_x, gradients = function_backward(tf.cast(d_y, y.dtype))
                return tf.cast(d_x, self.dtype), gradients

            return _rounded(tf.cast(y, self.dtype), self.bits), backward


class Stems(tf.Module):
    """Images to two streams, each by a stem of its own: half of the channels, so half of the memory at a time."""

    def __init__(self, first: OnGrid, second: OnGrid):
        super().__init__()
        self.stems = first, second

    def __call__(self, images: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, ...]:
        return tuple(stem(images, mode) for stem in self.stems)

    def pullback(self, images: tf.Tensor, mode: Mode) -> tuple[tuple[tf.Tensor, ...], Pullback]:
        """A replay computes a stem again once the one before it is done; its own output, unused, is dropped."""
        passes = [stem.pullback(images, mode) for stem in self.stems]

        def backward(d_y: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, Gradients]:
            d_images: list[tf.Tensor] = []
            gradients: Gradients = []
            for stem, d_stream, (_, stem_backward) in zip(self.stems, d_y, passes, strict=True):
                if mode.replaying:
                    again = after([d_stream, *(gradient for _, gradient in gradients)], images)
                    _, stem_backward = stem.pullback(again, mode)
                d_x, of_stem = stem_backward(d_stream)
                d_images.append(d_x)
                gradients += of_stem
            return tf.add_n(d_images), gradients

        return tuple(y for y, _ in passes), backward


class Join(tf.Module):
    """Two streams -> [N, H, W, 2 C] in `compute_dtype`."""

    def __init__(self, compute_dtype: tf.DType):
        super().__init__()
        self.compute_dtype = compute_dtype

    def __call__(self, x: tuple[tf.Tensor, tf.Tensor], mode: Mode) -> tf.Tensor:
        return tf.concat([tf.cast(stream, self.compute_dtype) for stream in x], axis=-1)


def build_revnet(config: RevNetConfig, spec: ModelSpec) -> Model:
    """Stem, one segment per stage (per unit when recomputed), head."""
    init, compute_dtype = spec.init, spec.compute_dtype
    # a stem can't be reversed: where the stages are, it is computed again
    stem_memory = "store" if config.memory == "store" else "recompute"
    stem_filters, *filters = [width // 2 for width in config.filters]  # of one stream
    widths = [stem_filters] + [width * (4 if config.bottleneck else 1) for width in filters]

    stored = [0] * len(config.units)
    if config.memory == "reverse":
        stored = count_stored_inner_convs(config.units, widths[1:], config.bottleneck)

    def on_grid(function: Callable[[tf.Tensor, Mode], tf.Tensor], dtype: tf.DType) -> OnGrid:
        return OnGrid(function, config.snap_bits, dtype)

    def unit(stage: int, place: int) -> Coupling:
        entry, left = place == 0, config.units[stage] - place  # with this one
        inputs, outputs = widths[stage] if entry else widths[stage + 1], widths[stage + 1]
        stride = 2 if entry and stage > 0 else 1
        widest = stage == 0

        def residual(inputs: int, stride: int, preactivated: bool) -> Residual:
            return Residual(
                init,
                config.norm,
                inputs,
                outputs,
                stride=stride,
                bottleneck=config.bottleneck,
                preactivated=preactivated,
                keep=not widest,
                store_inner_conv=left <= stored[stage],
                compute_dtype=compute_dtype,
            )

        # values as large as the first stage's streams stay in low precision, as memory peaks there: `add` converts them
        f_returns = compute_dtype if widest or (entry and stage == 1) else init.dtype
        g_returns = compute_dtype if widest else init.dtype
        f = on_grid(residual(inputs, stride, preactivated=not (entry and stage == 0)), f_returns)
        g = on_grid(residual(outputs, 1, preactivated=True), g_returns)
        first_shortcut, second_shortcut = (
            shortcut(init, inputs, outputs, stride, config.bottleneck, compute_dtype) for _ in range(2)
        )
        if first_shortcut is None or second_shortcut is None:
            return Coupling(f, g)
        return Coupling(f, g, (on_grid(first_shortcut, init.dtype), on_grid(second_shortcut, init.dtype)))

    # kept for the replay, so as small as it may be: the shortcuts of a first unit that has some return streams
    stem_returns = init.dtype if widths[0] == widths[1] else compute_dtype
    stems = (Stem(init, config.norm, config.stem, spec.channels, stem_filters, parts=2) for _ in range(2))
    segments: list[Segment] = [Chain(stem_memory, [Stems(*(on_grid(stem, stem_returns) for stem in stems))])]
    for stage, count in enumerate(config.units):
        units = [unit(stage, place) for place in range(count)]
        if config.memory == "recompute":
            segments += [Chain("recompute", [unit]) for unit in units]
        else:
            segments.append(Stage(config.memory, units))
    segments.append(Chain("store", [Join(compute_dtype), Head(init, config.norm, 2 * widths[-1], spec.num_classes)]))
    return Model(segments, compute_dtype)


def count_stored_inner_convs(units: Sequence[int], widths: Sequence[int], bottleneck: bool) -> list[int]:
    """How many units at the end of each stage keep what their replay would convolve for longest.

    The first stage, whose images are the largest, makes the peak, late in the backward pass. What units at the end of
    the network keep is freed by then: they may while all of them together keep no more than one and a half streams of
    the first stage. Each stage halves height and width.
    """
    kept = [2 * width / (4 if bottleneck else 1) / 4**stage for stage, width in enumerate(widths)]  # by F and G of one
    left, stored = 1.5 * widths[0], [0] * len(units)
    for stage in reversed(range(len(units))):
        stored[stage] = min(units[stage], int(left / kept[stage]))
        left -= stored[stage] * kept[stage]
        if stored[stage] < units[stage]:
            break
    return stored
