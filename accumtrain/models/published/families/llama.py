"""Llama (Touvron et al. 2023, arXiv:2302.13971; versions 2 and 3), and what is built like it, such as SmolLM2."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from accumtrain.errors import ConfigError
from accumtrain.fields import FRACTION, convert
from accumtrain.models.published.architecture import (
    Architecture,
    BlockNames,
    ClassHeadNames,
    DropoutRates,
    NextHeadNames,
    TokenEmbedding,
)
from accumtrain.models.published.families.rope import RopeKeys, read_frequencies
from accumtrain.models.published.families.rules import EPSILON, SIZE, Always

_BLOCK = "model.layers.{}."


class _LlamaOptions(RopeKeys, total=False):
    num_key_value_heads: Annotated[int, SIZE] | None
    head_dim: Annotated[int, SIZE] | None
    rms_norm_eps: Annotated[float, EPSILON]
    attention_bias: bool
    mlp_bias: bool
    attention_dropout: Annotated[float, FRACTION] | None
    tie_word_embeddings: bool
    pad_token_id: int | None


class _Llama(_LlamaOptions):
    vocab_size: Annotated[int, SIZE]
    max_position_embeddings: Annotated[int, SIZE]
    hidden_size: Annotated[int, SIZE]
    num_hidden_layers: Annotated[int, SIZE]
    num_attention_heads: Annotated[int, SIZE]
    intermediate_size: Annotated[int, SIZE]
    hidden_act: Annotated[str, Always("silu")]


def read_llama(content: Mapping[str, Any]) -> Architecture:
    """Return the architecture that a config.json describes. Raise ConfigError for a value that is not known here."""
    keys: _Llama = convert(_Llama, content, "")
    heads, width = keys["num_attention_heads"], keys["hidden_size"]
    kv_heads, head_width = keys.get("num_key_value_heads") or heads, keys.get("head_dim") or width // heads
    if heads % kv_heads:
        raise ConfigError(
            f"num_key_value_heads={kv_heads}: each serves as many of num_attention_heads={heads}, such as with "
            f"{math.gcd(heads, kv_heads)}; fetch the file again"
        )
    attention = tuple(f"{_BLOCK}self_attn.{name}_proj" for name in "qkvo")
    mlp = tuple(f"{_BLOCK}mlp.{name}_proj" for name in ("gate", "up", "down"))
    unbiased = (() if keys.get("attention_bias", False) else attention) + (() if keys.get("mlp_bias", False) else mlp)
    return Architecture(
        name="Llama",
        prefix="model.",
        depth=keys["num_hidden_layers"],
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_width=head_width,
        hidden=keys["intermediate_size"],
        activation="swiglu",
        norm="rms",
        epsilon=keys.get("rms_norm_eps", 1e-6),
        norm_first=True,
        embedding=TokenEmbedding(
            vocabulary=keys["vocab_size"],
            positions=keys["max_position_embeddings"],
            token_table="model.embed_tokens",
            position_table=None,
            padding=keys.get("pad_token_id"),
        ),
        frequencies=read_frequencies(keys, head_width),
        block=BlockNames(
            inward=attention[:3],
            attention_output=attention[3],
            attention_norm=f"{_BLOCK}input_layernorm",
            hidden=mlp[:2],
            output=mlp[2],
            output_norm=f"{_BLOCK}post_attention_layernorm",
            unbiased=unbiased,
        ),
        class_head=ClassHeadNames("score", norm="model.norm"),
        token_head=NextHeadNames(
            "LlamaForCausalLM", "model.norm", "lm_head.weight", tied=keys.get("tie_word_embeddings", False)
        ),
        dropout=DropoutRates(
            embedding=None,
            shares=keys.get("attention_dropout") or 0.0,
            attention_output=None,
            output=None,
            dense=None,
            logits=None,
        ),
    )
