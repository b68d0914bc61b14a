"""GPT-2 (Radford et al. 2019), and what is built like it, such as DistilGPT-2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from accumtrain.fields import FRACTION, convert
from accumtrain.models.published.architecture import (
    Architecture,
    BlockNames,
    ClassHeadNames,
    DropoutRates,
    NextHeadNames,
    TokenEmbedding,
)
from accumtrain.models.published.families.rules import ACTIVATION, EPSILON, NO, SIZE, Always, name_activation

_BLOCK = "transformer.h.{}."
_DROPOUT = 0.1  # if config.json does not say it


class _GPT2Options(TypedDict, total=False):
    n_inner: Annotated[int, SIZE] | None
    layer_norm_epsilon: Annotated[float, EPSILON]
    scale_attn_weights: Annotated[bool, Always(True)]
    scale_attn_by_inverse_layer_idx: Annotated[bool, NO]
    add_cross_attention: Annotated[bool, NO]
    tie_word_embeddings: bool
    pad_token_id: int | None
    embd_pdrop: Annotated[float, FRACTION]
    attn_pdrop: Annotated[float, FRACTION]
    resid_pdrop: Annotated[float, FRACTION]


class _GPT2(_GPT2Options):
    vocab_size: Annotated[int, SIZE]
    n_positions: Annotated[int, SIZE]
    n_embd: Annotated[int, SIZE]
    n_layer: Annotated[int, SIZE]
    n_head: Annotated[int, SIZE]
    activation_function: Annotated[str, ACTIVATION]


def read_gpt2(content: Mapping[str, Any]) -> Architecture:
    """Return the architecture that a config.json describes. Raise ConfigError for a value that is not known here."""
    keys: _GPT2 = convert(_GPT2, content, "")
    rate = keys.get("resid_pdrop", _DROPOUT)
    return Architecture(
        name="GPT2",
        prefix="transformer.",
        depth=keys["n_layer"],
        width=keys["n_embd"],
        heads=keys["n_head"],
        hidden=keys.get("n_inner") or 4 * keys["n_embd"],
        activation=name_activation(keys["activation_function"]),
        epsilon=keys.get("layer_norm_epsilon", 1e-5),
        norm_first=True,
        turned=False,
        embedding=TokenEmbedding(
            vocabulary=keys["vocab_size"],
            positions=keys["n_positions"],
            token_table="transformer.wte",
            position_table="transformer.wpe",
            padding=keys.get("pad_token_id"),
        ),
        block=BlockNames(
            inward=(f"{_BLOCK}attn.c_attn",),
            attention_output=f"{_BLOCK}attn.c_proj",
            attention_norm=f"{_BLOCK}ln_1",
            hidden=(f"{_BLOCK}mlp.c_fc",),
            output=f"{_BLOCK}mlp.c_proj",
            output_norm=f"{_BLOCK}ln_2",
        ),
        class_head=ClassHeadNames("score", norm="transformer.ln_f"),
        token_head=NextHeadNames(
            "GPT2LMHeadModel", "transformer.ln_f", "lm_head.weight", tied=keys.get("tie_word_embeddings", True)
        ),
        dropout=DropoutRates(
            embedding=keys.get("embd_pdrop", _DROPOUT),
            shares=keys.get("attn_pdrop", _DROPOUT),
            attention_output=rate,
            output=rate,
            dense=None,
            logits=None,
        ),
    )
