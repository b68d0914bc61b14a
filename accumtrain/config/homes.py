"""~ at the beginning of a path stands for the home directory.

A key is a path if its type says so (kinds/values.py, LocalPath). All of them are expanded here, once, before anything
is read.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any, TypeVar

from accumtrain.config.interpolation import FromEnvironment
from accumtrain.kinds.values import LocalPath, constraints_of

Keys = TypeVar("Keys")


def with_homes(record: Keys) -> Keys:
    """A configuration, or the keys of a part of it, with the home directory in the place of ~ in its paths."""
    constraints, changed = constraints_of(type(record)), dict[str, Any]()
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        value = getattr(record, field.name)
        new = value
        if dataclasses.is_dataclass(value):
            new = with_homes(value)
        elif isinstance(value, str) and any(isinstance(each, LocalPath) for each in constraints[field.name]):
            new = in_home(value)
        if new is not value:
            changed[field.name] = new
    return dataclasses.replace(record, **changed) if changed else record  # type: ignore[type-var]


def in_home(path: str) -> str:
    """The path with the home directory in the place of ~ or ~user; as it is if there is no such user."""
    if not path.startswith("~"):
        return path
    # Path.expanduser would drop slashes of a glob, and raise for an unknown user
    expanded = os.path.expanduser(path)  # noqa: PTH111
    return FromEnvironment(expanded, path.expression) if isinstance(path, FromEnvironment) else expanded
