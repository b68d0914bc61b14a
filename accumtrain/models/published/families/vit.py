"""ViT (Dosovitskiy et al. 2020, arXiv:2010.11929) and DeiT (Touvron et al. 2020, arXiv:2012.12877)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from accumtrain.errors import ConfigError
from accumtrain.fields import ImageSize, convert
from accumtrain.models.published.architecture import (
    Architecture,
    BlockNames,
    ClassHeadNames,
    DropoutRates,
    PatchEmbedding,
)
from accumtrain.models.published.families.rules import EPSILON, SIZE, BlockOptions, name_activation


class _ViTOptions(BlockOptions, total=False):
    layer_norm_eps: Annotated[float, EPSILON]
    qkv_bias: bool


class _ViT(_ViTOptions):
    image_size: Annotated[int, ImageSize()] | Annotated[list[int], ImageSize()]
    patch_size: Annotated[int, SIZE]
    num_channels: Annotated[int, SIZE]


def read_vit(content: Mapping[str, Any]) -> Architecture:
    """Return the architecture that a config.json describes. Raise ConfigError for a value that is not known here."""
    return _read(content, "ViT", ("vit.embeddings.cls_token",))


def read_deit(content: Mapping[str, Any]) -> Architecture:
    """Do the same for a DeiT, which has a second learned token. Its head reads the first alone."""
    return _read(content, "DeiT", ("deit.embeddings.cls_token", "deit.embeddings.distillation_token"))


def _read(content: Mapping[str, Any], name: str, tokens: tuple[str, ...]) -> Architecture:
    family = name.lower()
    keys: _ViT = convert(_ViT, content, "")
    side, patch = keys["image_size"], keys["patch_size"]
    height, width = side if isinstance(side, list) else (side, side)
    if height % patch or width % patch:
        raise ConfigError(f"patch_size={patch}: patches do not fill images of {height} x {width} (image_size)")
    rate = keys.get("hidden_dropout_prob", 0.0)
    block = f"{family}.encoder.layer.{{}}."
    inward = tuple(f"{block}attention.attention.{name}" for name in ("query", "key", "value"))
    return Architecture(
        name=name,
        prefix=f"{family}.",
        depth=keys["num_hidden_layers"],
        width=keys["hidden_size"],
        heads=keys["num_attention_heads"],
        hidden=keys["intermediate_size"],
        activation=name_activation(keys["hidden_act"]),
        epsilon=keys.get("layer_norm_eps", 1e-12),
        norm_first=True,
        embedding=PatchEmbedding(
            height=height,
            width=width,
            channels=keys["num_channels"],
            patch=patch,
            tokens=tokens,
            position_table=f"{family}.embeddings.position_embeddings",
            projection=f"{family}.embeddings.patch_embeddings.projection",
        ),
        block=BlockNames(
            inward=inward,
            attention_output=f"{block}attention.output.dense",
            attention_norm=f"{block}layernorm_before",
            hidden=(f"{block}intermediate.dense",),
            output=f"{block}output.dense",
            output_norm=f"{block}layernorm_after",
            unbiased=() if keys.get("qkv_bias", True) else inward,
        ),
        class_head=ClassHeadNames("classifier", norm=f"{family}.layernorm"),
        dropout=DropoutRates(
            embedding=rate,
            shares=keys.get("attention_probs_dropout_prob", 0.0),
            attention_output=rate,
            output=rate,
            dense=None,
            logits=None,
        ),
    )
