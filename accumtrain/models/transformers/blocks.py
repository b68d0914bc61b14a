"""The two residual functions of a transformer block, each after a norm, and the block of a plain transformer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import tensorflow as tf

from accumtrain.backprop.fixed_point import FLOATS
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.pullback import Gradients, Module, Pullback, pullback
from accumtrain.models.layers import FLOATS_ONLY, Initializer, Numerics
from accumtrain.models.resnet.blocks import DropPath
from accumtrain.models.transformers.activations import GELU, SwiGLU
from accumtrain.models.transformers.attention import Attention
from accumtrain.models.transformers.config import DecoderConfig, TransformerConfig
from accumtrain.models.transformers.layers import LayerNorm, Layers, LayerScale, Linear, RMSNorm
from accumtrain.models.transformers.rotary import Rotary, frequencies_of

NORMS: dict[str, type[LayerNorm | RMSNorm]] = {"layer": LayerNorm, "rms": RMSNorm}  # by their names in configurations


class ResidualFunction(Layers):
    """A norm, then a function of its output, which is added to the input elsewhere.

    Args:
        norm: the class of the norm.
        inner: the layers between the norm and the last linear layer.
        hidden: channels of their output.
        drop_path: drops the output for some examples; None drops none.
        numerics: of its input, computation and output.
        has_bias: of the last linear layer.
    """

    def __init__(
        self,
        init: Initializer,
        config: TransformerConfig,
        norm: type[LayerNorm | RMSNorm],
        inner: Sequence[Module],
        hidden: int,
        drop_path: DropPath | None,
        numerics: Numerics,
        *,
        has_bias: bool = True,
    ):
        width, start = config.width, config.layer_scale
        last = Linear(init, hidden, width, numerics if start is None else FLOATS_ONLY, has_bias=has_bias)
        scale = [] if start is None else [LayerScale(init, width, start, numerics)]
        first = norm(init, width, replace(numerics, adds_to=FLOATS))
        drop = [] if drop_path is None else [drop_path]
        super().__init__([first, *inner, last, *scale, *drop])


def build_functions(
    init: Initializer, config: TransformerConfig, drop_paths: Iterator[DropPath | None], numerics: Numerics
) -> tuple[ResidualFunction, ResidualFunction]:
    """Return attention and MLP of a block. Each takes the next of `drop_paths`."""
    width, hidden = config.width, config.hidden
    in_attention: list[Module] = [Linear(init, width, 3 * width), Attention(config.heads)]
    attention = ResidualFunction(init, config, LayerNorm, in_attention, width, next(drop_paths), numerics)
    in_mlp: list[Module] = [Linear(init, width, hidden), GELU()]
    return attention, ResidualFunction(init, config, LayerNorm, in_mlp, hidden, next(drop_paths), numerics)


def build_decoder_functions(
    init: Initializer, config: DecoderConfig, drop_paths: Iterator[DropPath | None], numerics: Numerics
) -> tuple[ResidualFunction, ResidualFunction]:
    """Return causal attention and MLP of a block. Each takes the next of `drop_paths`."""
    width, hidden, norm, size = config.width, config.hidden, NORMS[config.norm], config.width // config.heads
    kv_heads = config.heads if config.kv_heads is None else config.kv_heads
    rotary = Rotary(frequencies_of(size, config.theta)) if config.positions == "rotary" else None
    in_attention: list[Module] = [
        Linear(init, width, (config.heads + 2 * kv_heads) * size, has_bias=config.bias),
        Attention(config.heads, kv_heads=kv_heads, causal=True, rotary=rotary),
    ]
    attention = ResidualFunction(
        init, config, norm, in_attention, width, next(drop_paths), numerics, has_bias=config.bias
    )
    gated = config.activation == "swiglu"
    in_mlp: list[Module] = [
        Linear(init, width, 2 * hidden if gated else hidden, has_bias=config.bias),
        SwiGLU() if gated else GELU(),
    ]
    mlp = ResidualFunction(init, config, norm, in_mlp, hidden, next(drop_paths), numerics, has_bias=config.bias)
    return attention, mlp


class AddTo(tf.Module):
    """The function x + f(x), for x [N, T, C] of the dtype of the weights."""

    def __init__(self, function: Layers):
        super().__init__()
        self.function = function

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        with tf.control_dependencies([x]):  # without it the kernels of all blocks are cast, and kept, from the start
            return x + tf.cast(self.function(x, mode), x.dtype)

    def pullback(self, x: tf.Tensor, mode: Mode) -> tuple[tf.Tensor, Pullback]:
        with tf.control_dependencies([x]):
            y, function_backward = pullback(self.function, x, mode)

            def backward(d_y: tf.Tensor) -> tuple[tf.Tensor, Gradients]:
                d_x, gradients = function_backward(tf.cast(d_y, y.dtype))
                return d_y + d_x, gradients

            return x + tf.cast(y, x.dtype), backward
