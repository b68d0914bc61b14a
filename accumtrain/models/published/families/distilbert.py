"""DistilBERT (Sanh et al. 2019, arXiv:1910.01108)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from accumtrain.fields import FRACTION, convert
from accumtrain.models.published.architecture import (
    Architecture,
    BlockNames,
    ClassHeadNames,
    DropoutRates,
    TokenHeadNames,
)
from accumtrain.models.published.families.bert import name_embedding
from accumtrain.models.published.families.rules import ACTIVATION, SIZE, Always, name_activation

_BLOCK = "distilbert.transformer.layer.{}."
_EPSILON = 1e-12  # config.json does not say it


class _DistilBertOptions(TypedDict, total=False):
    tie_word_embeddings: Annotated[bool, Always(True)]
    dropout: Annotated[float, FRACTION]
    attention_dropout: Annotated[float, FRACTION]
    seq_classif_dropout: Annotated[float, FRACTION]


class _DistilBert(_DistilBertOptions):
    vocab_size: Annotated[int, SIZE]
    max_position_embeddings: Annotated[int, SIZE]
    dim: Annotated[int, SIZE]
    n_layers: Annotated[int, SIZE]
    n_heads: Annotated[int, SIZE]
    hidden_dim: Annotated[int, SIZE]
    activation: Annotated[str, ACTIVATION]


def read_distilbert(content: Mapping[str, Any]) -> Architecture:
    """Return the architecture that a config.json describes. Raise ConfigError for a value that is not known here."""
    keys: _DistilBert = convert(_DistilBert, content, "")
    activation, rate = name_activation(keys["activation"]), keys.get("dropout", 0.1)
    return Architecture(
        name="DistilBert",
        prefix="distilbert.",
        depth=keys["n_layers"],
        width=keys["dim"],
        heads=keys["n_heads"],
        hidden=keys["hidden_dim"],
        activation=activation,
        epsilon=_EPSILON,
        norm_first=False,
        embedding=name_embedding("distilbert", keys["vocab_size"], keys["max_position_embeddings"]),
        block=BlockNames(
            inward=tuple(f"{_BLOCK}attention.{name}_lin" for name in "qkv"),
            attention_output=f"{_BLOCK}attention.out_lin",
            attention_norm=f"{_BLOCK}sa_layer_norm",
            hidden=(f"{_BLOCK}ffn.lin1",),
            output=f"{_BLOCK}ffn.lin2",
            output_norm=f"{_BLOCK}output_layer_norm",
        ),
        class_head=ClassHeadNames("classifier", dense="pre_classifier", activation="relu"),
        dropout=DropoutRates(
            embedding=rate,
            shares=keys.get("attention_dropout", 0.1),
            attention_output=None,
            output=rate,
            dense=None,
            logits=keys.get("seq_classif_dropout", 0.2),
        ),
        token_head=TokenHeadNames("vocab_transform", activation, "vocab_layer_norm", "vocab_projector.bias"),
    )
