"""Rotary positions as a config.json tells them: rope_theta with rope_scaling, or both in the newer rope_parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

from accumtrain.errors import ConfigError
from accumtrain.fields import POSITIVE, convert, format_value, shorten, suggest_names
from accumtrain.models.published.families.rules import NO, SIZE, Always

THETA = 10_000.0  # if config.json does not say it
_KINDS = ("rope_type", "type")  # the key that names the kind of scaling; older files have the second


class _Angles(TypedDict, total=False):
    rope_theta: Annotated[float, POSITIVE]
    partial_rotary_factor: Annotated[float, Always(1.0)]


class RopeKeys(_Angles, total=False):
    """The keys of config.json about rotary positions."""

    rope_interleaved: Annotated[bool, NO]
    rope_scaling: dict[str, Any] | None
    rope_parameters: dict[str, Any] | None


class _Scaled(TypedDict):
    """Longer texts than the model was first trained on, as Llama 3.1 has them (arXiv:2407.21783).

    Waves that are long beside those texts are slowed down by `factor`, short ones stay, and those between do in part.
    """

    factor: Annotated[float, POSITIVE]
    low_freq_factor: Annotated[float, POSITIVE]
    high_freq_factor: Annotated[float, POSITIVE]
    original_max_position_embeddings: Annotated[int, SIZE]


def read_frequencies(keys: RopeKeys, channels: int) -> tuple[float, ...]:
    """Return the angle for each token of every pair of a head's channels.

    Raises:
        ConfigError: the positions are scaled in a way that is not known here, or told twice.
    """
    if channels % 2:
        raise ConfigError(f"heads of {channels} channels: rotary positions turn pairs of them; fetch the file again")
    older, newer = keys.get("rope_scaling"), keys.get("rope_parameters")
    if older and newer:
        raise ConfigError(
            f"rope_scaling={shorten(format_value(older))}: rope_parameters tells the same; take out the one of the two "
            "that the weights were not trained with"
        )
    name, content = ("rope_scaling", older) if older else ("rope_parameters", newer or {})
    angles: _Angles = convert(_Angles, content, name)
    theta = angles.get("rope_theta", keys.get("rope_theta", THETA))
    frequencies = tuple(theta ** (-place / channels) for place in range(0, channels, 2))
    scaled = _read_scaling(name, content)
    return frequencies if scaled is None else tuple(_scale(each, scaled) for each in frequencies)


def _read_scaling(name: str, content: Mapping[str, Any]) -> _Scaled | None:
    kind = next((content[key] for key in _KINDS if key in content), "default")
    if kind not in ("default", "llama3"):
        raise ConfigError(
            f"{name}.rope_type={shorten(format_value(kind))}: only default and llama3 are known here; take a model "
            "that has one of them"
        )
    known = {*_KINDS, *_Angles.__annotations__, *(_Scaled.__annotations__ if kind == "llama3" else ())}
    if odd := sorted(content.keys() - known):
        raise ConfigError(
            f"{name}.{odd[0]}={shorten(format_value(content[odd[0]]))}: is not known here of rope_type={kind}; "
            f"{suggest_names(odd[0][:50], sorted(known))}"
        )
    if kind == "default":
        return None
    scaled: _Scaled = convert(_Scaled, content, name)
    if scaled["low_freq_factor"] >= scaled["high_freq_factor"]:
        raise ConfigError(
            f"{name}.low_freq_factor={scaled['low_freq_factor']:g}: must be below high_freq_factor="
            f"{scaled['high_freq_factor']:g}; fetch the file again"
        )
    return scaled


def _scale(frequency: float, scaled: _Scaled) -> float:
    turns = scaled["original_max_position_embeddings"] * frequency / (2 * math.pi)  # of the wave, in an early text
    low, high = scaled["low_freq_factor"], scaled["high_freq_factor"]
    kept = min(max((turns - low) / (high - low), 0.0), 1.0)
    return frequency * (kept + (1.0 - kept) / scaled["factor"])
