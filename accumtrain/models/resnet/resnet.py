"""Pre-activation residual networks, as the RevNet authors built their baselines (renmengye/revnet-public)."""

from __future__ import annotations

import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.model import Model
from accumtrain.backprop.pullback import Gradients, Pullback, pullback
from accumtrain.backprop.segments import Chain, Segment
from accumtrain.models.config import ResNetConfig
from accumtrain.models.layers import ModelSpec
from accumtrain.models.resnet.blocks import Head, Residual, Stem, build_shortcut, drop_paths, with_norm_momentum
from accumtrain.models.resnet.kept_convs import choose_kept_convs, kept_convs_of


class Unit(tf.Module):
    """y = shortcut(x) + residual(x)."""

    def __init__(self, residual: Residual, shortcut: tf.Module | None):
        super().__init__()
        self.residual, self.shortcut = residual, shortcut

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        residual = self.residual(x, mode)
        return residual + (x if self.shortcut is None else self.shortcut(x, mode))

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        residual, residual_backward = self.residual.pullback(x, mode)
        skip, skip_backward = pullback(self.shortcut, x, mode)

        def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
            d_x_by_residual, residual_gradients = residual_backward(d_y)
            d_x_by_skip, skip_gradients = skip_backward(d_y)
            return d_x_by_residual + d_x_by_skip, residual_gradients + skip_gradients

        return residual + skip, backward


def build_resnet(config: ResNetConfig, spec: ModelSpec) -> Model:
    """Build stem, one segment per unit, and head."""
    init, widths, kept = spec.init, config.stream_widths, choose_kept_convs(config)
    segments: list[Segment] = [
        Chain(config.policy, [Stem(init, config.norm, config.stem, spec.channels, widths[0])]),
    ]
    drop_path = drop_paths(config.drop_path, sum(config.units))
    for stage, units in enumerate(config.units):
        inputs, outputs = widths[stage], widths[stage + 1]
        for unit in range(units):
            stride = 2 if stage > 0 and unit == 0 else 1
            residual = Residual(
                init,
                config.norm,
                inputs,
                outputs,
                stride=stride,
                bottleneck=config.bottleneck,
                preactivated=stage > 0 or unit > 0,
                kept_convs=kept_convs_of(kept, stage, unit, 0),
                drop_path=next(drop_path),
            )
            skip = build_shortcut(init, inputs, outputs, stride, config.bottleneck)
            segments.append(Chain(config.policy, [Unit(residual, skip)]))
            inputs = outputs
    segments.append(Chain("store", [Head(init, config.norm, widths[-1], spec.num_classes)]))
    return with_norm_momentum(Model(segments, spec.compute_dtype), config.norm_momentum)
