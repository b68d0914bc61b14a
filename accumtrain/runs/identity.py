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

# beginnings of keys whose values change what is learned from here on, but no variable of the state
OF_THE_RULES = (
    *("accum.", "batch_size", "loss.", "run.seed", "schedule."),
    *("model.drop_path", "model.norm_momentum", "model.snap_bits"),
    *("optim.adaptive_clip", "optim.beta", "optim.clip_", "optim.epsilon", "optim.lr", "optim.rates", "optim.weight_"),
    *("data.augment", "data.cutmix", "data.erasing", "data.jitter", "data.magnitude", "data.mean", "data.mixup"),
    *("data.randaugment", "data.sampling", "data.std", "data.test_", "data.train_", "data.val_"),
)
CLASSES = "data.classes"  # of a fingerprint: their names, or their number


def learned_values(config: Config | Mapping[str, Any]) -> dict[str, Any]:
    """The values that decide what is learned, by dotted key.

    Raises:
        KeyError, TypeError: the mapping is not the content of a config.yaml.
    """
    mapping = to_mapping(config) if isinstance(config, Config) else config
    flat = {f"{group}.{key}": value for group in LEARNED_GROUPS for key, value in mapping[group].items()}
    for key in LEARNED_KEYS:
        value: Any = mapping
        for name in key.split("."):
            value = value[name]
        flat[key] = value
    accum = mapping["accum"]
    if accum["reduction"] == "sum":
        flat["accum.steps"] = accum["steps"]
    flat["accum.reduction"] = accum["reduction"]
    return {key: value for key, value in flat.items() if key not in NOT_LEARNED}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """`key=old there and new here` for each key whose value differs; empty if none does.

    Keys that only one side has are left out: they belong to another kind, whose name differs, too.
    """
    return ", ".join(f"{key}={show(old)} there and {show(new)} here" for key, old, new in _all_changed(before, now))


def fits_state(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether the state of a run can go on with the learned values that differ, and so run.resume=force helps."""
    return all(key.startswith(OF_THE_RULES) for key, *_ in _all_changed(before, now))


def as_many_classes(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether two fingerprints of data have as many classes, which the state of a run needs to go on."""
    first, second = (each.get(CLASSES) for each in (before, now))
    return _count(first) == _count(second)


def _count(classes: Any) -> Any:
    return len(classes) if isinstance(classes, list) else classes


def _all_changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Dotted key, old and new value of what both sides have and what differs."""
    for key in now:
        if key in before:
            yield from _changed(key, before[key], now[key])


def _changed(key: str, before: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """Dotted key, old and new value of what differs; of mappings with the same keys what differs in them."""
    if isinstance(before, Mapping) and isinstance(now, Mapping) and before.keys() == now.keys():
        for name in now:
            yield from _changed(f"{key}.{name}", before[name], now[name])
    elif before != now:
        yield key, before, now
