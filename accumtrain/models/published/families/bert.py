"""BERT (Devlin et al. 2018, arXiv:1810.04805): cased, uncased, multilingual, and the many trained like it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accumtrain.fields import convert
from accumtrain.models.published.architecture import (
    Architecture,
    BlockNames,
    ClassHeadNames,
    DropoutRates,
    TokenEmbedding,
    TokenHeadNames,
)
from accumtrain.models.published.families.rules import TextKeys, name_activation

DROPOUT = 0.1  # if config.json does not say it


def read_bert(content: Mapping[str, Any]) -> Architecture:
    """Return the architecture that a config.json describes. Raise ConfigError for a value that is not known here."""
    keys: TextKeys = convert(TextKeys, content, "")
    return read_encoder(
        keys,
        "Bert",
        first_position=0,
        class_head=ClassHeadNames("classifier", dense="bert.pooler.dense"),
        dropout=read_rates(keys),
        token_head=TokenHeadNames(
            "cls.predictions.transform.dense",
            name_activation(keys["hidden_act"]),
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.bias",
        ),
    )


def read_encoder(
    keys: TextKeys,
    name: str,
    *,
    first_position: int,
    class_head: ClassHeadNames,
    dropout: DropoutRates,
    token_head: TokenHeadNames,
    module: str = "bert",
) -> Architecture:
    """Return the architecture of a family with BERT's keys, embeddings and blocks.

    Args:
        module: the first part of the names of its tensors.
    """
    return Architecture(
        name=name,
        prefix=f"{module}.",
        depth=keys["num_hidden_layers"],
        width=keys["hidden_size"],
        heads=keys["num_attention_heads"],
        hidden=keys["intermediate_size"],
        activation=name_activation(keys["hidden_act"]),
        epsilon=keys.get("layer_norm_eps", 1e-12),
        norm_first=False,
        embedding=name_embedding(
            module, keys["vocab_size"], keys["max_position_embeddings"], first_position, keys["type_vocab_size"]
        ),
        block=_name_block(f"{module}.encoder.layer.{{}}."),
        class_head=class_head,
        dropout=dropout,
        token_head=token_head,
    )


def read_rates(keys: TextKeys) -> DropoutRates:
    """Return the rates of dropout as BERT has them."""
    rate, of_logits = keys.get("hidden_dropout_prob", DROPOUT), keys.get("classifier_dropout")
    return DropoutRates(
        embedding=rate,
        shares=keys.get("attention_probs_dropout_prob", DROPOUT),
        attention_output=rate,
        output=rate,
        dense=None,
        logits=rate if of_logits is None else of_logits,
    )


def name_embedding(
    module: str, vocabulary: int, positions: int, first_position: int = 0, types: int = 0
) -> TokenEmbedding:
    """Return the embedding with the names that BERT gives its tables, behind the first part of all names."""
    return TokenEmbedding(
        vocabulary=vocabulary,
        positions=positions,
        first_position=first_position,
        types=types,
        token_table=f"{module}.embeddings.word_embeddings",
        position_table=f"{module}.embeddings.position_embeddings",
        type_table=f"{module}.embeddings.token_type_embeddings",
        norm=f"{module}.embeddings.LayerNorm",
    )


def _name_block(block: str) -> BlockNames:
    """Return the names of the layers of a block as BERT has them, after the name of the block."""
    return BlockNames(
        inward=tuple(f"{block}attention.self.{name}" for name in ("query", "key", "value")),
        attention_output=f"{block}attention.output.dense",
        attention_norm=f"{block}attention.output.LayerNorm",
        hidden=(f"{block}intermediate.dense",),
        output=f"{block}output.dense",
        output_norm=f"{block}output.LayerNorm",
    )
