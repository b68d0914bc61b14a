"""The families of published models that are known here, by the model_type of their config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from accumtrain.errors import ConfigError
from accumtrain.fields import format_value, shorten, suggest_names
from accumtrain.models.published.architecture import Architecture
from accumtrain.models.published.families.bert import read_bert
from accumtrain.models.published.families.distilbert import read_distilbert
from accumtrain.models.published.families.gpt2 import read_gpt2
from accumtrain.models.published.families.llama import read_llama
from accumtrain.models.published.families.roberta import read_roberta, read_xlm_roberta
from accumtrain.models.published.families.vit import read_deit, read_vit

FAMILIES: dict[str, Callable[[Mapping[str, Any]], Architecture]] = {
    "bert": read_bert,
    "roberta": read_roberta,
    "xlm-roberta": read_xlm_roberta,
    "distilbert": read_distilbert,
    "gpt2": read_gpt2,
    "llama": read_llama,
    "vit": read_vit,
    "deit": read_deit,
}


def read_architecture(content: Mapping[str, Any], given: str) -> Architecture:
    """Return the architecture that the content of a config.json describes.

    Args:
        given: the name of the file, which messages begin with.

    Raises:
        ConfigError: its family, or a value, is not known here; or the values contradict each other.
    """
    family = content.get("model_type")
    read = FAMILIES.get(family) if isinstance(family, str) else None
    if read is None:
        raise ConfigError(
            f"{given}: model_type={shorten(format_value(family))} is no family that is known here; "
            f"{suggest_names(str(family)[:50], FAMILIES)}"
        )
    try:
        found = read(content)
    except ConfigError as error:
        raise ConfigError(f"{given}: {error}") from error
    if found.width % found.heads:
        raise ConfigError(
            f"{given}: {found.heads} attention heads do not share {found.width} channels evenly; fetch the file again"
        )
    return found
