"""RoBERTa (Liu et al. 2019, arXiv:1907.11692) and XLM-RoBERTa (Conneau et al. 2019, arXiv:1911.02116)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from accumtrain.fields import NOT_NEGATIVE, convert
from accumtrain.models.published.architecture import Architecture, ClassHeadNames, TokenHeadNames
from accumtrain.models.published.families.bert import read_encoder, read_rates
from accumtrain.models.published.families.rules import TextKeys


class _Roberta(TextKeys):
    pad_token_id: Annotated[int, NOT_NEGATIVE]


def read_roberta(content: Mapping[str, Any]) -> Architecture:
    """Return the architecture that a config.json describes. Raise ConfigError for a value that is not known here."""
    return _read(content, "Roberta")


def read_xlm_roberta(content: Mapping[str, Any]) -> Architecture:
    """Do the same for an XLM-RoBERTa, which has other tokens and the same tensors."""
    return _read(content, "XLMRoberta")


def _read(content: Mapping[str, Any], name: str) -> Architecture:
    keys: _Roberta = convert(_Roberta, content, "")
    rates = read_rates(keys)
    return read_encoder(
        keys,
        name,
        first_position=keys["pad_token_id"] + 1,  # as padding has the position of its id
        class_head=ClassHeadNames("classifier.out_proj", dense="classifier.dense"),
        dropout=replace(rates, dense=rates.logits),
        token_head=TokenHeadNames("lm_head.dense", "gelu", "lm_head.layer_norm", "lm_head.bias"),
        module="roberta",
    )
