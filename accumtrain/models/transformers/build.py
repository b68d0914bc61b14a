"""Vision transformers and text encoders, plain and reversible, from their configuration.

A reversible one has two streams that begin as the embeddings: y1 = x1 + attention(x2), y2 = x2 + mlp(y1) (Mangalam et
al. 2022, arXiv:2302.04869). They are fixed-point numbers, so reversal is exact to the bit (backprop/fixed_point.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.backprop.fixed_point import FLOATS, FixedPoint
from accumtrain.backprop.model import Model, SplitInputs
from accumtrain.backprop.pullback import Module
from accumtrain.backprop.segments import Chain, Coupling, OnStreams, Segment, Stage
from accumtrain.backprop.streams import JoinStreams, TwoStreams
from accumtrain.errors import ConfigError
from accumtrain.models.config import STORE, EncoderConfig, ReversibleConfig, TransformerConfig, ViTConfig
from accumtrain.models.layers import ModelSpec, Numerics
from accumtrain.models.resnet.blocks import drop_paths
from accumtrain.models.transformers.blocks import AddTo, build_functions
from accumtrain.models.transformers.embed import Embed, Patches, TokenTable, sincos, sincos_of_grid
from accumtrain.models.transformers.heads import ClassHead, build_token_head


def build_vit(config: ViTConfig, spec: ModelSpec) -> Model:
    """Build a vision transformer. Raise ConfigError if patches do not fill the images."""
    height, width, channels = spec.shape
    if height % config.patch or width % config.patch:
        sides = [side for side in range(1, min(height, width) + 1) if height % side == 0 and width % side == 0]
        raise ConfigError(
            f"model.patch={config.patch}: images are {height} x {width}, and patches of {config.patch} x "
            f"{config.patch} do not fill them; use model.patch={_nearest(sides, min(height, width) / 8)}, or set "
            "data.image_size"
        )
    rows, columns = height // config.patch, width // config.patch
    fixed = sincos_of_grid(rows, columns, config.width) if config.positions == "sincos" else None
    patches = Patches(spec.init, config.patch, channels, config.width)
    embed = _embed(config, spec, patches, rows * columns, fixed)
    return _build(config, spec, embed, None)


def build_encoder(config: EncoderConfig, spec: ModelSpec) -> Model:
    """Build a text encoder, whose inputs are tokens, int32 [N, T], below 0 where there is none."""
    (tokens,) = spec.shape
    fixed = sincos(np.arange(tokens), config.width) if config.positions == "sincos" else None
    table = TokenTable(spec.init, spec.vocabulary, config.width)
    embed = _embed(config, spec, table, tokens, fixed)
    return _build(config, spec, embed, table)


def _embed(
    config: TransformerConfig, spec: ModelSpec, embed: Patches | TokenTable, tokens: int, fixed: np.ndarray | None
) -> Embed:
    return Embed(spec.init, embed, tokens, config.width, fixed=fixed, class_token=config.has_class_token)


def _build(config: TransformerConfig, spec: ModelSpec, embed: Embed, table: TokenTable | None) -> Model:
    """Build embedding, blocks and head. The blocks of a reversible model are one stage."""
    init, width = spec.init, config.width
    reversible = isinstance(config, ReversibleConfig)
    numbers = FixedPoint(config.snap_bits) if isinstance(config, ReversibleConfig) else FLOATS
    numerics = Numerics(spec.compute_dtype, numbers, numbers)
    drops = drop_paths(config.drop_path, 2 * config.depth)
    functions = [build_functions(init, config, drops, numerics) for _ in range(config.depth)]
    begin: list[Module] = [embed, TwoStreams(numbers.bits)] if reversible else [embed]
    segments: list[Segment] = [Chain("store" if config.policy == STORE else "recompute", begin)]
    join: list[Module] = []
    if reversible:
        units = []
        for index, pair in enumerate(functions):
            attention, mlp = (OnStreams(function, numbers, init.dtype) for function in pair)
            units.append(Coupling(attention, mlp, numbers=numbers, checks_range=index == config.depth - 1))
        segments.append(Stage(config.policy, units, exact=numbers.bits > 0, stored=config.kept_blocks))
        join = [JoinStreams(numbers.bits)]
    else:
        recomputed = config.depth - config.kept_blocks
        for index, pair in enumerate(functions):
            memory = config.policy if index < recomputed else STORE
            segments.append(Chain(memory, [AddTo(function) for function in pair]))
    channels = 2 * width if reversible else width
    head: Module
    if spec.per_token and table is not None:
        head = build_token_head(init, channels, width, table, spec.compute_dtype)
    else:
        head = ClassHead(init, channels, spec.num_classes, class_token=config.has_class_token)
    segments.append(Chain("store", [*join, head]))
    return Model(segments, spec.compute_dtype, None if table is None else _split_tokens(config, spec))


def _split_tokens(config: TransformerConfig, spec: ModelSpec) -> SplitInputs:
    """Return the function from inputs to tokens, and the mask and the positions that layers read beside them.

    The types of the tokens of pairs are left out: special tokens separate the texts.
    """

    def split(inputs: Any) -> tuple[tf.Tensor, Mapping[str, tf.Tensor]]:
        tokens = inputs["tokens"] if isinstance(inputs, Mapping) else inputs
        first = int(config.has_class_token)
        side = {"mask": tf.pad(tokens >= 0, [[0, 0], [first, 0]], constant_values=True)}
        if spec.per_token:
            side["positions"] = inputs["positions"] + first
        return tokens, side

    return split


def _nearest(numbers: list[int], wanted: float) -> int:
    return min(numbers, key=lambda number: abs(number - wanted))
