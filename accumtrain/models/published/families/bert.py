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

_BLOCK = "bert.encoder.layer.{}."
DROPOUT = 0.1  # if config.json does not say it


def read_bert(content: Mapping[str, Any]) -> Architecture:
    """Return the architecture that a config.json describes. Raise ConfigError for a value that is not known here."""
    keys: TextKeys = convert(TextKeys, content, "")
    activation = name_activation(keys["hidden_act"])
    return Architecture(
        name="Bert",
        prefix="bert.",
        depth=keys["num_hidden_layers"],
        width=keys["hidden_size"],
        heads=keys["num_attention_heads"],
        hidden=keys["intermediate_size"],
        activation=activation,
        epsilon=keys.get("layer_norm_eps", 1e-12),
        norm_first=False,
        embedding=TokenEmbedding(
            vocabulary=keys["vocab_size"],
            positions=keys["max_position_embeddings"],
            first_position=0,
            types=keys["type_vocab_size"],
            token_table="bert.embeddings.word_embeddings",
            position_table="bert.embeddings.position_embeddings",
            type_table="bert.embeddings.token_type_embeddings",
            norm="bert.embeddings.LayerNorm",
        ),
        block=name_block(_BLOCK),
        class_head=ClassHeadNames("classifier", dense="bert.pooler.dense"),
        dropout=read_rates(keys),
        token_head=TokenHeadNames(
            "cls.predictions.transform.dense",
            activation,
            "cls.predictions.transform.LayerNorm",
            "cls.predictions.bias",
        ),
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


def name_block(block: str) -> BlockNames:
    """Return the names of the layers of a block as BERT has them, after the name of the block."""
    return BlockNames(
        query=f"{block}attention.self.query",
        key=f"{block}attention.self.key",
        value=f"{block}attention.self.value",
        attention_output=f"{block}attention.output.dense",
        attention_norm=f"{block}attention.output.LayerNorm",
        hidden=f"{block}intermediate.dense",
        output=f"{block}output.dense",
        output_norm=f"{block}output.LayerNorm",
    )
