"""The command's `key=value` arguments: values that are given, and dotted keys of mappings that are open."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Sequence
from functools import cache

from accumtrain.kinds.groups import GROUPS


def given_value(overrides: Sequence[str], key: str, default: str) -> str:
    """The plain value that the command gives to `key`: neither several nor one to interpolate."""
    given = dict(override.partition("=")[::2] for override in overrides)
    value = given.get(key, default).strip("'\"")
    return default if set(value) & set("$,") else value


def with_open_keys(arguments: Sequence[str]) -> list[str]:
    """The arguments, in which `optim.args.beta_2=0.95` may name a key that optim.args does not have yet.

    Hydra adds a key only where the argument begins with ++.
    """
    names = "|".join(map(re.escape, _mappings()))
    return [f"++{each}" if re.match(rf"({names})\.[A-Za-z_]\w*=", each) else each for each in arguments]


@cache
def _mappings() -> tuple[str, ...]:
    """The dotted keys whose values are mappings of whatever keys, such as optim.args."""
    return tuple(
        dict.fromkeys(
            f"{group}.{field.name}"
            for group, table in GROUPS.items()
            for row in table
            for field in dataclasses.fields(row.config)
            if typing.get_origin(typing.get_type_hints(row.config)[field.name]) is dict
        )
    )
