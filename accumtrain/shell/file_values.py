"""Refuses what a file of the command, such as an experiment or a recipe, gives where the command contradicts it.

A file gives keys for the choices that it expects. The command may choose otherwise, and its user has not seen the keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from accumtrain.config.convert import of_another_kind
from accumtrain.errors import ConfigError
from accumtrain.kinds.groups import GROUPS
from accumtrain.kinds.values import show
from accumtrain.shell.overrides import key_of, sets_any_key


def check_files(values: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Checks what the files that a command names give beside what its overrides write.

    Args:
        values: the composed configuration.

    Raises:
        ConfigError: a file gives train.steps, which takes precedence over the command's train.epochs; or it gives a key
            that the chosen kind does not have.
    """
    written = {key_of(override) for override in overrides}
    files = [each for each in overrides if sets_any_key(each)]
    source = " or ".join(files) or "a file of the command"
    _check_length(values.get("train"), written, source)
    for group in GROUPS:
        strays = [key for key in _strays(group, values.get(group)) if not _is_written(f"{group}.{key}", written)]
        if strays:
            keys = [f"{group}.{key}" for key in strays]
            raise ConfigError(
                f"{keys[0]}: {of_another_kind(group, strays[0])}; {source} gives {' and '.join(['it', *keys[1:]])}: "
                f"add {' '.join(f'~{key}' for key in keys)}"
            )


def _check_length(train: Any, written: set[str], source: str) -> None:
    if not isinstance(train, Mapping) or "train.epochs" not in written or "train.steps" in written:
        return
    epochs, steps = train.get("epochs"), train.get("steps")
    if epochs is not None and steps is not None:
        raise ConfigError(
            f"train.epochs={show(epochs)}: {source} gives train.steps={show(steps)}, which takes precedence; "
            "add train.steps=null"
        )


def _strays(group: str, given: Any) -> list[str]:
    """The keys of a group that only other kinds than the chosen one have."""
    kind = given.get("kind") if isinstance(given, Mapping) else None
    if kind not in GROUPS[group].names:
        return []
    known = {field.name for field in fields(GROUPS[group][kind].config)}
    return [key for key in given if key not in known and of_another_kind(group, key)]


def _is_written(key: str, written: set[str]) -> bool:
    return any(each == key or each.startswith(f"{key}.") for each in written)
