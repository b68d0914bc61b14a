"""Which keys of a configuration have other values than their defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from accumtrain.config.schema import Config
from accumtrain.kinds.groups import GROUPS

KIND = "kind"


def changed_from_defaults(values: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Default and value of each key that differs, by dotted key.

    The default of a group is its default kind; those of a group's keys are those of the kind that `values` choose. The
    default of a key without one, and of all keys of a kind that this program does not know, is None.

    Args:
        values: the content of a config.yaml. A key that it lacks has its default.
    """
    defaults = dict(_flat(_defaults(values)))
    found = dict(_flat(values))
    return {key: (defaults.get(key), value) for key, value in found.items() if value != defaults.get(key)}


def _defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    defaults = dataclasses.asdict(Config())
    for group, table in GROUPS.items():
        default, given = defaults[group][KIND], values.get(group)
        chosen = given.get(KIND, default) if isinstance(given, Mapping) else default
        row = table[chosen].config if chosen in table.rows else None
        defaults[group] = {**dict(_keys(row)), KIND: default}
    return defaults


def _keys(record: Any) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(record) if record else ():
        if field.default is not dataclasses.MISSING:
            yield field.name, field.default
        elif field.default_factory is not dataclasses.MISSING:
            yield field.name, field.default_factory()


def _flat(values: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of all but the mappings of groups; optim.args and the like stay as they are."""
    for key, value in values.items():
        if isinstance(value, Mapping) and not where:
            yield from _flat(value, f"{key}.")
        else:
            yield f"{where}{key}", value
