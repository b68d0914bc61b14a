"""Reversible residual networks (Gomez et al. 2017, arXiv:1707.04585), reversed to the bit.

Both streams are fixed-point numbers of 32 bits (of 64, if variables are float64), whatever dtype F and G compute in
(backprop/fixed_point.py). So x1 = y1 - F(x2) gives the same bits as in the forward pass, at any depth.
"""

from __future__ import annotations

from functools import partial

import tensorflow as tf

from accumtrain.backprop.fixed_point import FLOATS, FixedPoint
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.model import Model
from accumtrain.backprop.pullback import Gradients, Pullback
from accumtrain.backprop.replay import save_for_backward, save_values_for_backward
from accumtrain.backprop.segments import Chain, Coupling, OnStreams, Segment, Stage
from accumtrain.backprop.tracing import after
from accumtrain.models.config import RevNetConfig
from accumtrain.models.layers import ModelSpec, Numerics
from accumtrain.models.resnet.blocks import Head, Residual, Stem, build_shortcut, drop_paths, with_norm_momentum
from accumtrain.models.resnet.kept_convs import choose_kept_convs, kept_convs_of


class Stems(tf.Module):
    """Two stems from images to a stream each, with half of the channels, so that one takes half of the memory."""

    def __init__(self, first: OnStreams, second: OnStreams):
        super().__init__()
        self.stems = first, second

    def __call__(self, images: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, ...]:
        return tuple(stem.numbers.for_mode(mode).differentiable_encode(stem(images, mode)) for stem in self.stems)

    def pullback(self, images: tf.Tensor, mode: Mode) -> tuple[tuple[tf.Tensor, ...], Pullback]:
        """Return both streams and their pullback. A replay computes a stem after the gradients of the one before it."""
        # in a replay nothing uses these passes, so the graph drops them
        passes = [stem.pullback(images, mode) for stem in self.stems]

        def backward(d_y: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, Gradients]:
            d_images: list[tf.Tensor] = []
            gradients: Gradients = []
            for stem, d_stream, (_, stem_backward) in zip(self.stems, d_y, passes, strict=True):
                if mode.replaying:
                    again = after([d_stream, *(gradient for _, gradient in gradients)], images)
                    _, stem_backward = stem.pullback(again, mode)
                d_x, stem_gradients = stem_backward(d_stream)
                d_images.append(d_x)
                gradients += stem_gradients
            return tf.add_n(d_images), gradients

        return tuple(stem.numbers.encode(y) for stem, (y, _) in zip(self.stems, passes, strict=True)), backward


class Join(tf.Module):
    """The join of two streams to [N, H, W, 2 C] in `compute_dtype`."""

    def __init__(self, numbers: FixedPoint, compute_dtype: tf.DType):
        super().__init__()
        self.numbers, self.compute_dtype = numbers, compute_dtype

    def __call__(self, x: tuple[tf.Tensor, tf.Tensor], mode: Mode) -> tf.Tensor:
        read = self.numbers.for_mode(mode).differentiable_read
        return tf.concat([read(stream, self.compute_dtype) for stream in x], axis=-1)


def build_revnet(config: RevNetConfig, spec: ModelSpec) -> Model:
    """Build stem, one segment per stage, and head."""
    init, compute_dtype = spec.init, spec.compute_dtype
    # a stem is not invertible: with memory=reverse it is recomputed
    stem_memory = "store" if config.policy == "store" else "recompute"
    widths, kept = config.stream_widths, choose_kept_convs(config)
    drop_path = drop_paths(config.drop_path, 2 * sum(config.units))  # of F and G of each unit
    numbers = FixedPoint(config.snap_bits)
    # float16 has no exponents for scaled values
    low_dtype = init.dtype if compute_dtype == tf.float16 and config.snap_bits else compute_dtype
    # the stems' output is kept for the replay: as streams, or in low precision, if shortcuts of the first unit read it
    stem_numbers, stem_dtype = (numbers, init.dtype) if widths[0] == widths[1] else (FLOATS, compute_dtype)

    def unit(stage: int, index: int) -> Coupling:
        entry, first_stage = index == 0, stage == 0
        inputs, outputs = widths[stage] if entry else widths[stage + 1], widths[stage + 1]
        stride = 2 if entry and not first_stage else 1
        reads = stem_numbers if entry and first_stage else numbers

        def residual(function: int, inputs: int, stride: int, preactivated: bool, reads: FixedPoint) -> Residual:
            return Residual(
                init,
                config.norm,
                inputs,
                outputs,
                stride=stride,
                bottleneck=config.bottleneck,
                preactivated=preactivated,
                keep_activations=not first_stage,
                kept_convs=kept_convs_of(kept, stage, index, function),
                drop_path=next(drop_path),
                numerics=Numerics(compute_dtype, reads, numbers),
            )

        # memory peaks in the first stage: values as large as its streams stay in low precision, and `add` casts them
        f_dtype = low_dtype if first_stage or (entry and stage == 1) else init.dtype
        g_dtype = low_dtype if first_stage else init.dtype
        f = OnStreams(residual(0, inputs, stride, not (entry and first_stage), reads), numbers, f_dtype)
        g = OnStreams(residual(1, outputs, 1, True, numbers), numbers, g_dtype)
        first, second = (
            build_shortcut(init, inputs, outputs, stride, config.bottleneck, Numerics(compute_dtype, reads, numbers))
            for _ in range(2)
        )
        shortcuts = None
        if first is not None and second is not None:
            shortcuts = OnStreams(first, numbers, init.dtype), OnStreams(second, numbers, init.dtype)
        return Coupling(f, g, shortcuts, numbers, checks_range=index == config.units[stage] - 1)

    stems = (Stem(init, config.norm, config.stem, spec.channels, widths[0], parts=2) for _ in range(2))
    of_streams = [OnStreams(stem, stem_numbers, stem_dtype, scales=False) for stem in stems]
    segments: list[Segment] = [Chain(stem_memory, [Stems(*of_streams)])]
    for stage, count in enumerate(config.units):
        units = [unit(stage, index) for index in range(count)]
        # the first unit of a later stage only reads the streams, in compute_dtype
        low = stage > 0 and compute_dtype == tf.bfloat16
        keep_first = partial(save_values_for_backward, numbers, compute_dtype) if low else save_for_backward
        segments.append(Stage(config.policy, units, exact=config.snap_bits > 0, keep_first=keep_first))
    segments.append(
        Chain("store", [Join(numbers, compute_dtype), Head(init, config.norm, 2 * widths[-1], spec.num_classes)])
    )
    return with_norm_momentum(Model(segments, compute_dtype), config.norm_momentum)
