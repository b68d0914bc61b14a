"""A word for all that decides a training, by which one of other keys has another folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from accumtrain.config.read import flatten_keys, to_mapping
from accumtrain.config.roles import list_roles
from accumtrain.config.schema import Config
from accumtrain.fields import Role


def digest_of(config: Config, beginning: str = "") -> str:
    """Return a word of 8 characters for a configuration, without the keys that only tell how a process works.

    Args:
        beginning: the checksum of the state that it begins with.
    """
    values = to_mapping(config)
    roles = list_roles(values)
    deciding = {key: value for key, value in flatten_keys(values) if Role.UNNAMED not in _role_of(key, roles)}
    text = json.dumps([deciding, beginning], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _role_of(key: str, roles: Mapping[str, Role]) -> Role:
    """Return the role of a key, or of the key that holds it."""
    while key not in roles:
        key, _, _ = key.rpartition(".")
    return roles[key]
