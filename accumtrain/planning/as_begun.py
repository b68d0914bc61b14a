"""What the run in a folder began with, as far as it decides how much memory it takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accumtrain.config.convert import to_mapping
from accumtrain.config.schema import Config
from accumtrain.console import say, warn
from accumtrain.errors import CheckpointError
from accumtrain.kinds.values import show
from accumtrain.runs.contents import read_config
from accumtrain.runs.folder import folder_of
from accumtrain.runs.identity import differences, learned_values

NOT_LEARNED = (  # but of the peak
    *("model.memory", "model.kept_convs", "model.kept_share", "accum.steps", "accum.dtype"),
    *("device.kind", "device.memory_limit_mb", "device.virtual", "device.xla"),
)


def _config_file(config: Config) -> Path:
    """It is there when the run has begun."""
    return folder_of(config) / "config.yaml"


def has_fitted(config: Config) -> bool:
    """Whether the run in the folder began with what decides the peak: then it has been found to fit."""
    try:
        return _began_alike(config)
    except CheckpointError:
        return False  # the warning comes where the run is opened


def _began_alike(config: Config) -> bool:
    """Whether the run in the folder began with the same peak as that of `config`; if not, says what differs.

    Raises:
        CheckpointError: its config.yaml is damaged.
    """
    path = _config_file(config)
    if not path.exists():
        return False
    began, now = _of_peak(read_config(path)), _of_peak(to_mapping(config))
    if config.accum.is_auto:
        del now["accum.steps"]
    changed = differences(began, now)
    if changed:
        say(f"what fits is looked for again: the run in {path.parent} began otherwise, {changed}")
    return not changed


def _of_peak(values: Mapping[str, Any]) -> dict[str, Any]:
    """What decides the peak of a configuration, by dotted key. Workers may have other addresses."""
    learned = {key: value for key, value in learned_values(values).items() if not key.startswith(("schedule.", "run."))}
    others = {key: _value(values, *key.split(".")) for key in NOT_LEARNED}
    return learned | others | {"workers": len(_value(values, "device", "workers") or [])}


def steps_as_begun(config: Config) -> int | None:
    """accum.steps of the run in the folder; None if there is none, or it is not what `config` goes on with."""
    try:
        return saved_steps(config) if _began_alike(config) else None
    except CheckpointError as error:
        warn(f"{error}; accum.steps is looked for again")
        return None


def saved_steps(config: Config) -> int | None:
    """accum.steps of the run in the folder; None if there is no run.

    Raises:
        CheckpointError: its config.yaml is damaged.
    """
    path = _config_file(config)
    if not path.exists():
        return None
    steps = _value(read_config(path), "accum", "steps")
    if not isinstance(steps, int) or steps < 1:
        raise CheckpointError(f"{path} is damaged: accum.steps={show(steps)} is no number of micro-batches")
    return steps


def _value(values: Mapping[str, Any], group: str, name: str) -> Any:
    """A value of a config.yaml; None if it has none."""
    found = values.get(group)
    return found.get(name) if isinstance(found, Mapping) else None
