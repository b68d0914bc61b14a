"""Vision transformers, text encoders and causal decoders, plain and reversible, from their configuration.

A reversible one has two streams that begin as the embeddings: y1 = x1 + attention(x2), y2 = x2 + mlp(y1) (Mangalam et
al. 2022, arXiv:2302.04869). They are fixed-point numbers, so reversal is exact to the bit (backprop/fixed_point.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.backprop.fixed_point import FLOATS, FixedPoint
from accumtrain.backprop.model import Model, SplitInputs
from accumtrain.backprop.pullback import Module
from accumtrain.backprop.segments import Chain, Coupling, OnStreams, Segment, Stage
from accumtrain.backprop.streams import JoinStreams, TwoStreams
from accumtrain.errors import ConfigError
from accumtrain.fields import EACH, MASKED
from accumtrain.models.config import STORE, ReversibleConfig
from accumtrain.models.layers import Dense, ModelSpec, Numerics
from accumtrain.models.resnet.blocks import DropPath, drop_paths
from accumtrain.models.transformers.blocks import (
    NORMS,
    AddTo,
    ResidualFunction,
    build_decoder_functions,
    build_functions,
)
from accumtrain.models.transformers.config import (
    DecoderConfig,
    EncoderConfig,
    PooledConfig,
    TransformerConfig,
    ViTConfig,
)
from accumtrain.models.transformers.embed import (
    DEVIATION,
    Embed,
    EmbedText,
    Patches,
    TokenTable,
    sincos,
    sincos_of_grid,
)
from accumtrain.models.transformers.heads import (
    ClassHead,
    EachTokenHead,
    LastTokenHead,
    NextTokenHead,
    build_token_head,
)
from accumtrain.models.transformers.layers import Linear, axis_size

BuildFunctions = Callable[[Iterator[DropPath | None], Numerics], tuple[ResidualFunction, ResidualFunction]]


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

    def build_head(channels: int) -> Module:
        return ClassHead(spec.init, channels, spec.num_classes, class_token=config.has_class_token)

    return _build(config, spec, embed, partial(build_functions, spec.init, config), build_head)


def build_encoder(config: EncoderConfig, spec: ModelSpec) -> Model:
    """Build a text encoder, whose inputs are tokens, int32 [N, T], below 0 where there is none.

    Raises:
        ConfigError: it is asked for next tokens, which its tokens attend to.
    """
    spec.check_told(f"model={config.label}", causal=False)
    (tokens,) = spec.shape
    fixed = sincos(np.arange(tokens), config.width) if config.positions == "sincos" else None
    table = TokenTable(spec.init, spec.vocabulary, config.width)
    embed = _embed(config, spec, table, tokens, fixed)

    def build_head(channels: int) -> Module:
        if spec.tells == EACH:
            return EachTokenHead(spec.init, channels, spec.num_classes, first=int(config.has_class_token))
        if spec.tells:
            return build_token_head(spec.init, channels, config.width, table, spec.compute_dtype)
        return ClassHead(spec.init, channels, spec.num_classes, class_token=config.has_class_token)

    return _build(
        config, spec, embed, partial(build_functions, spec.init, config), build_head, _split_tokens(config, spec)
    )


def build_decoder(config: DecoderConfig, spec: ModelSpec) -> Model:
    """Build a causal decoder. Its inputs are tokens, int32 [N, T], below 0 where there is none, which is at the end.

    Inputs of packed rows are such `tokens` by name, and beside them `documents`, int32 [N, T]: equal numbers, below
    2^24, where tokens are of one document, whose tokens stand in one piece.

    Raises:
        ConfigError: it is asked for masked tokens, which are told from both sides.
    """
    spec.check_told(f"model={config.label}", causal=True)
    (tokens,) = spec.shape
    init, norm = spec.init, NORMS[config.norm]
    table = TokenTable(init, spec.vocabulary, config.width)
    embed = EmbedText(init, table, tokens if config.positions == "learned" else None, config.width)

    def build_head(channels: int) -> Module:
        if not spec.tells:
            return LastTokenHead(norm(init, channels), Dense(init, channels, spec.num_classes))
        linear = None if channels == config.width else Linear(init, channels, config.width, has_bias=config.bias)
        size = (spec.vocabulary, config.width)
        vectors = table.embedding if config.tied else init.normal(size, DEVIATION, "kernel")
        return NextTokenHead(norm(init, channels), linear, vectors, spec.compute_dtype)

    return _build(config, spec, embed, partial(build_decoder_functions, init, config), build_head, split_documents)


def _embed(
    config: PooledConfig, spec: ModelSpec, embed: Patches | TokenTable, tokens: int, fixed: np.ndarray | None
) -> Embed:
    return Embed(spec.init, embed, tokens, config.width, fixed=fixed, class_token=config.has_class_token)


def _build(
    config: TransformerConfig,
    spec: ModelSpec,
    embed: Module,
    build_pair: BuildFunctions,
    build_head: Callable[[int], Module],
    split: SplitInputs | None = None,
) -> Model:
    """Build embedding, blocks and head. The blocks of a reversible model are one stage.

    Args:
        build_pair: builds the two functions of a block.
        build_head: takes the number of channels behind the blocks.
    """
    reversible = isinstance(config, ReversibleConfig)
    numbers = FixedPoint(config.snap_bits) if isinstance(config, ReversibleConfig) else FLOATS
    numerics = Numerics(spec.compute_dtype, numbers, numbers)
    drops = drop_paths(config.drop_path, 2 * config.depth)
    functions = [build_pair(drops, numerics) for _ in range(config.depth)]
    begin: list[Module] = [embed, TwoStreams(numbers.bits)] if reversible else [embed]
    segments: list[Segment] = [Chain("store" if config.policy == STORE else "recompute", begin)]
    join: list[Module] = []
    if reversible:
        units = []
        for index, pair in enumerate(functions):
            attention, mlp = (OnStreams(function, numbers, spec.init.dtype) for function in pair)
            units.append(Coupling(attention, mlp, numbers=numbers, checks_range=index == config.depth - 1))
        segments.append(Stage(config.policy, units, exact=numbers.bits > 0, stored=config.kept_blocks))
        join = [JoinStreams(numbers.bits)]
    else:
        recomputed = config.depth - config.kept_blocks
        for index, pair in enumerate(functions):
            memory = config.policy if index < recomputed else STORE
            segments.append(Chain(memory, [AddTo(function) for function in pair]))
    head = build_head(2 * config.width if reversible else config.width)
    segments.append(Chain("store", [*join, head]))
    return Model(segments, spec.compute_dtype, split)


def split_documents(inputs: Any) -> tuple[tf.Tensor, Mapping[str, tf.Tensor]]:
    """Return tokens, and what layers read beside them: their mask, of packed rows documents and places in these.

    Places may be given, too.
    """
    given = inputs if isinstance(inputs, Mapping) else {"tokens": inputs}
    tokens, side = given["tokens"], {"mask": given["tokens"] >= 0}
    if "documents" in given:
        side |= {"documents": given["documents"], "places": _places(given["documents"])}
    if "places" in given:
        side["places"] = given["places"]
    return tokens, side


def _places(documents: tf.Tensor) -> tf.Tensor:
    """Return the place of each token in its document, int32 [N, T]: from 0 on behind every change of the number."""
    begins = tf.pad(documents[:, 1:] != documents[:, :-1], [[0, 0], [1, 0]])
    order = tf.cumsum(tf.cast(begins, tf.int32), axis=1)
    return tf.range(axis_size(documents, 1)) - tf.searchsorted(order, order)


def _split_tokens(config: PooledConfig, spec: ModelSpec) -> SplitInputs:
    """Return the function from inputs to tokens, and the mask and the positions that layers read beside them.

    The types of the tokens of pairs are left out: special tokens separate the texts.
    """

    def split(inputs: Any) -> tuple[tf.Tensor, Mapping[str, tf.Tensor]]:
        tokens = inputs["tokens"] if isinstance(inputs, Mapping) else inputs
        first = int(config.has_class_token)
        side = {"mask": tf.pad(tokens >= 0, [[0, 0], [first, 0]], constant_values=True)}
        if spec.tells == MASKED:
            side["positions"] = inputs["positions"] + first
        return tokens, side

    return split


def _nearest(numbers: list[int], wanted: float) -> int:
    return min(numbers, key=lambda number: abs(number - wanted))
