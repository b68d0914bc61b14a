"""Reversible residual networks (Gomez et al. 2017, arXiv:1707.04585), reversed to the bit.

Both streams are float32 (or float64, as the variables) whatever dtype F and G compute in, and are rounded to a grid
(backprop/grid.py), so x1 = y1 - F(x2) gives the same bits as in the forward pass, at any depth.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from accumtrain.backprop.grid import OnGrid
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.model import Model
from accumtrain.backprop.order import after
from accumtrain.backprop.pullback import Gradients, Pullback
from accumtrain.backprop.segments import Chain, Coupling, Segment, Stage
from accumtrain.kinds.resnets import RevNetConfig
from accumtrain.models.blocks import Residual, Stem, shortcut, with_norm_momentum
from accumtrain.models.drop_path import drop_paths
from accumtrain.models.head import Head
from accumtrain.models.kept_convs import convs_kept, kept_places
from accumtrain.models.spec import ModelSpec


class Stems(tf.Module):
    """Images to two streams, each by its own stem with half of the channels, so that one takes half of the memory."""

    def __init__(self, first: OnGrid, second: OnGrid):
        super().__init__()
        self.stems = first, second

    def __call__(self, images: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, ...]:
        return tuple(stem(images, mode) for stem in self.stems)

    def pullback(self, images: tf.Tensor, mode: Mode) -> tuple[tuple[tf.Tensor, ...], Pullback]:
        """In a replay a stem is computed again only after the gradients of the stem before it."""
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
    # a stem is not invertible: with memory=reverse it is recomputed
    stem_memory = "store" if config.policy == "store" else "recompute"
    widths, kept = config.stream_widths, kept_places(config)
    drop_path = drop_paths(config.drop_path, 2 * sum(config.units))  # of F and G of each unit

    def on_grid(function: Callable[[tf.Tensor, Mode], tf.Tensor], dtype: tf.DType) -> OnGrid:
        return OnGrid(function, config.snap_bits, dtype)

    def unit(stage: int, place: int) -> Coupling:
        entry, first_stage = place == 0, stage == 0
        inputs, outputs = widths[stage] if entry else widths[stage + 1], widths[stage + 1]
        stride = 2 if entry and not first_stage else 1

        def residual(function: int, inputs: int, stride: int, preactivated: bool) -> Residual:
            return Residual(
                init,
                config.norm,
                inputs,
                outputs,
                stride=stride,
                bottleneck=config.bottleneck,
                preactivated=preactivated,
                keep_activations=not first_stage,
                kept_convs=convs_kept(kept, stage, place, function),
                drop_path=next(drop_path),
                compute_dtype=compute_dtype,
            )

        # memory peaks in the first stage: values as large as its streams stay in low precision, and `add` casts them
        f_dtype = compute_dtype if first_stage or (entry and stage == 1) else init.dtype
        g_dtype = compute_dtype if first_stage else init.dtype
        f = on_grid(residual(0, inputs, stride, preactivated=not (entry and first_stage)), f_dtype)
        g = on_grid(residual(1, outputs, 1, preactivated=True), g_dtype)
        first_shortcut, second_shortcut = (
            shortcut(init, inputs, outputs, stride, config.bottleneck, compute_dtype) for _ in range(2)
        )
        if first_shortcut is None or second_shortcut is None:
            return Coupling(f, g)
        return Coupling(f, g, (on_grid(first_shortcut, init.dtype), on_grid(second_shortcut, init.dtype)))

    # the stems' output is kept for the replay: in low precision, if shortcuts of the first unit cast it to streams
    stem_dtype = init.dtype if widths[0] == widths[1] else compute_dtype
    stems = (Stem(init, config.norm, config.stem, spec.channels, widths[0], parts=2) for _ in range(2))
    segments: list[Segment] = [Chain(stem_memory, [Stems(*(on_grid(stem, stem_dtype) for stem in stems))])]
    for stage, count in enumerate(config.units):
        units = [unit(stage, place) for place in range(count)]
        if config.policy == "recompute":
            segments += [Chain("recompute", [unit]) for unit in units]
        else:
            segments.append(Stage(config.policy, units, exact=config.snap_bits > 0))
    segments.append(Chain("store", [Join(compute_dtype), Head(init, config.norm, 2 * widths[-1], spec.num_classes)]))
    return with_norm_momentum(Model(segments, compute_dtype), config.norm_momentum)
