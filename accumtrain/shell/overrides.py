"""The overrides of a command (`key=value`): reads the value of a key, and adapts overrides for Hydra."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from functools import cache

from accumtrain.config.conf_dir import CONF_DIR
from accumtrain.kinds.groups import GROUPS
from accumtrain.kinds.jobs import JOBS

NO_TEXT = re.compile(r"^([+-]?[\d._]+(e[+-]?\d+)?|true|false)$", re.IGNORECASE)  # what Hydra reads as something else
HOME = re.compile(r"(?<![^,])~[^,]*")  # a path that begins with ~, alone or in a sweep
QUOTES = "'\"\\[{"  # where one of these stands, the value is left as it was written

OF_ANY_KEY = ("experiment", "recipe")  # groups whose files are no part of one group


def given_value(overrides: Sequence[str], key: str, default: str) -> str:
    """The value of `key` in the overrides; `default` if there is none, several, or one with an interpolation."""
    given = dict(override.partition("=")[::2] for override in overrides)
    value = given.get(key, default).strip("'\"")
    return default if set(value) & set("$,") else value


def key_of(override: str) -> str:
    """The key that an override sets, adds or removes, or the group of which it makes a choice."""
    return override.partition("=")[0].lstrip("+~").partition("@")[0]


def sets_any_key(override: str) -> bool:
    """Whether an override chooses a file of accumtrain's that may give keys of any group."""
    return key_of(override) in OF_ANY_KEY and override.partition("=")[2] not in ("", "null")


def for_hydra(overrides: Sequence[str]) -> list[str]:
    """Adapts the overrides of a command for Hydra.

    `optim.args.beta_2=0.95` and `optim.args={beta_2:0.95}` may add keys to optim.args, which Hydra allows only with ++.
    The number in `accum=4` is quoted, as Hydra looks only for text among the choices of a group. The name of a job
    alone, as in `accumtrain train`, is `job=train`. ~/photos is quoted, as Hydra reads ~ as a mark of its own.
    """
    return [_with_home_quoted(_with_number_quoted(_with_key_added(_with_job_named(each)))) for each in overrides]


def _with_job_named(argument: str) -> str:
    return f"job={argument}" if argument in JOBS.names else argument


def _with_key_added(argument: str) -> str:
    key, equals, _ = argument.partition("=")
    beginnings = {key[: dot.start()] for dot in re.finditer(r"\.", key)}
    is_open = key in _mappings() or (beginnings & _mappings() and all(map(str.isidentifier, key.split("."))))
    return f"++{argument}" if equals and is_open else argument


def _with_number_quoted(argument: str) -> str:
    group, _, values = argument.partition("=")
    if not (group.isidentifier() and (CONF_DIR / group).is_dir()):
        return argument
    return f"{group}={','.join(NO_TEXT.sub(_quoted, value) for value in values.split(','))}"


def _with_home_quoted(argument: str) -> str:
    key, equals, values = argument.partition("=")
    return f"{key}{equals}{HOME.sub(_quoted, values)}" if not set(values) & set(QUOTES) else argument


def _quoted(value: re.Match[str]) -> str:
    return f"'{value[0]}'"


@cache
def _mappings() -> frozenset[str]:
    """The dotted keys whose values are mappings with any keys, such as optim.args."""
    return frozenset(
        f"{group}.{field.name}"
        for group, table in GROUPS.items()
        for row in table
        for field in dataclasses.fields(row.config)
        if str(field.type).startswith("dict[")
    )
