"""The roles of the keys of a configuration, as their classes declare them."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from accumtrain.config.registries import REGISTRIES
from accumtrain.config.schema import Config
from accumtrain.fields import Role, roles_of


def list_roles(values: Mapping[str, Any]) -> dict[str, Role]:
    """Return the role of each key that its class declares or `values` hold, by dotted key.

    A key of `values` that its class does not declare has the role of the class. The class of a kind that this program
    does not know is the base class of the group.

    Args:
        values: the content of a config.yaml.

    Raises:
        AttributeError: the value of a group is no mapping.
    """
    roles = {}
    for name, hint in typing.get_type_hints(Config).items():
        if not is_dataclass(hint):
            roles[name] = roles_of(Config)[name]
            continue
        given = values.get(name, {})
        entry = REGISTRIES[name].entries.get(str(given.get("kind"))) if name in REGISTRIES else None
        record: Any = hint if entry is None else entry.config
        declared, of_class = roles_of(record), getattr(record, "ROLE", Role.NONE)
        roles |= {f"{name}.{key}": declared.get(key, of_class) for key in dict.fromkeys([*declared, *given])}
    return roles


def keys_with(role: Role, values: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys that have all of a role."""
    return [key for key, found in list_roles(values).items() if role in found]
