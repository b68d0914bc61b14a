"""What a continued run must have in common with the run that it continues."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from accumtrain.config.convert import to_mapping
from accumtrain.config.schema import Config
from accumtrain.kinds.values import show

# The keys that decide what is learned. A continued run must keep their values; all others may change.
LEARNED_GROUPS = ("model", "optim", "schedule", "loss", "data", "ema")
LEARNED_KEYS = ("batch_size", "precision", "run.seed")
# where data and first weights lie does not matter: their content is compared by what a checkpoint's manifest says of it
NOT_LEARNED = (
    "model.memory",
    "model.kept_convs",
    "model.kept_share",
    "model.title",
    "model.weights",
    "data.dir",
    "data.download",
    "data.path",
    "data.test_path",
    "data.on_error",
    "data.max_pixels",
)


def learned_values(config: Config | Mapping[str, Any]) -> dict[str, Any]:
    """The values that decide what is learned, by dotted key.

    Raises:
        KeyError, TypeError: the mapping is not the content of a config.yaml.
    """
    mapping = to_mapping(config) if isinstance(config, Config) else config
    flat = {f"{group}.{key}": value for group in LEARNED_GROUPS for key, value in mapping.get(group, {}).items()}
    for key in LEARNED_KEYS:
        value: Any = mapping
        for name in key.split("."):
            value = value[name]
        flat[key] = value
    accum = mapping.get("accum", {})
    if accum.get("reduction") == "sum":
        flat["accum.steps"] = accum["steps"]
    flat["accum.reduction"] = accum.get("reduction", "mean")
    flat.setdefault("model.freeze", [])
    flat.setdefault("optim.rates", {})
    return {key: value for key, value in flat.items() if key not in NOT_LEARNED}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """`key=old there and new here` for each key whose value differs; empty if none does.

    Keys that only one side has are left out: they belong to another version.
    """
    return ", ".join(
        f"{key}={show(old)} there and {show(new)} here"
        for key in now
        if key in before
        for key, old, new in _changed(key, before[key], now[key])
    )


def _changed(key: str, before: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """Dotted key, old and new value of what differs; of mappings with the same keys what differs in them."""
    if isinstance(before, Mapping) and isinstance(now, Mapping) and before.keys() == now.keys():
        for name in now:
            yield from _changed(f"{key}.{name}", before[name], now[name])
    elif before != now:
        yield key, before, now
