"""The overrides of a command (`key=value`): values in them, and their form for Hydra."""

from __future__ import annotations

import re
import typing
from collections import defaultdict
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from accumtrain.config.jobs import JOBS
from accumtrain.config.keys import CONF_DIR, list_config_classes
from accumtrain.config.schema import Config

TEXT_TYPES = {str, str | None, list[str]}  # of keys that take text only
NOT_TEXT = re.compile(r"[+-]?([\d._]+(e[+-]?\d+)?|inf|nan)|true|false", re.IGNORECASE)  # no text for Hydra
BARE = re.compile(r"[\w/\-+.$%*@?|: \t]*", re.ASCII)  # a text that Hydra reads without quotes
ONE_OF_SEVERAL = re.compile(r"""'[^']*'(?=,|$)|"[^"]*"(?=,|$)|[^,]+""")  # a value, or one of those of a sweep
LIST = re.compile(r"\[([^\[\]{}]*)\]")  # without a list in it
# a list, a mapping, a function of Hydra's, an escape or an interpolation: such a value is left as it was written
FOR_HYDRA = re.compile(
    r"[\[{]|(choice|range|interval|glob|shuffle|sort|tag|int|float|str|bool|json_str|extend_list)\(|.*(\\|\$\{)"
)
CROSS_GROUP = ("experiment", "recipe")  # groups whose files give keys of any group


def find_given_value(overrides: Sequence[str], key: str, default: str) -> str:
    """Return the value of `key` in the overrides; `default` if it is missing, a list for a sweep, or interpolated."""
    given = dict(override.partition("=")[::2] for override in overrides)
    value = given.get(key, default).strip("'\"")
    return default if set(value) & set("$,") else value


def given_keys(overrides: Sequence[str], group: str) -> dict[str, str]:
    """Return the values that overrides give to the keys of a group, by the names of these."""
    pairs = (override.partition("=")[::2] for override in overrides)
    return {key.removeprefix(f"{group}."): value.strip("'\"") for key, value in pairs if key.startswith(f"{group}.")}


def parse_key(override: str) -> str:
    """Return the key that an override sets, adds or removes, or the group of which it makes a choice."""
    return override.partition("=")[0].lstrip("+~").partition("@")[0]


def sets_any_key(override: str) -> bool:
    """Return whether an override chooses a file of accumtrain's that may give keys of any group."""
    return parse_key(override) in CROSS_GROUP and override.partition("=")[2] not in ("", "null")


def for_hydra(overrides: Sequence[str]) -> list[str]:
    """Adapt the overrides of a command for Hydra.

    `optim.args.beta_2=0.95` and `optim.args={beta_2:0.95}` may add keys to optim.args, which Hydra allows only with ++.
    The name of a job alone, as in `accumtrain train`, is `job=train`. A text that Hydra would read as a number, as in
    run.name=2024_01_01 and accum=4, or can't read, as in data.path=~/it's, is quoted.
    """
    named = (f"job={override}" if override in JOBS.names else override for override in overrides)
    return [_quote_texts(_allow_new_key(override)) for override in named]


def quote_text(text: str) -> str:
    """Return the text in quotes, as Hydra reads it back."""
    escaped = re.sub(r"(\\*)('|$)", lambda found: 2 * found[1] + found[2].replace("'", "\\'"), text)
    return f"'{escaped}'"


def _allow_new_key(argument: str) -> str:
    key, equals, _ = argument.partition("=")
    beginnings = {key[: dot.start()] for dot in re.finditer(r"\.", key)}
    is_open = key in list_mappings() or (beginnings & list_mappings() and all(map(str.isidentifier, key.split("."))))
    return f"++{argument}" if equals and is_open else argument


def _quote_texts(argument: str) -> str:
    key, equals, value = argument.partition("=")
    takes_text = key.lstrip("+") in _list_text_keys() or (key.isidentifier() and (CONF_DIR / key).is_dir())
    quote = partial(ONE_OF_SEVERAL.sub, lambda found: _quote_if_needed(found[0], takes_text))
    if takes_text and (items := LIST.fullmatch(value)):
        return f"{key}{equals}[{quote(items[1])}]"
    return argument if FOR_HYDRA.match(value) else f"{key}{equals}{quote(value)}"


def _quote_if_needed(value: str, takes_text: bool) -> str:
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    is_no_text = takes_text and NOT_TEXT.fullmatch(value.strip())
    return value if is_quoted or (BARE.fullmatch(value) and not is_no_text) else quote_text(value.strip())


@cache
def _list_text_keys() -> frozenset[str]:
    """Return the dotted keys that take text only, whatever kind of their group is chosen."""
    return frozenset(key for key, hints in _list_types().items() if hints <= TEXT_TYPES)


@cache
def list_mappings() -> frozenset[str]:
    """Return the dotted keys whose values are mappings with any keys, such as optim.args."""
    return frozenset(
        key for key, hints in _list_types().items() if any(typing.get_origin(hint) is dict for hint in hints)
    )


@cache
def _list_types() -> dict[str, set[Any]]:
    """Return the types of each dotted key, of all kinds of its group."""
    types = defaultdict[str, set[Any]](set)
    for group, classes in {"": [Config], **list_config_classes()}.items():
        for cls in classes:
            for name, hint in typing.get_type_hints(cls).items():
                types[f"{group}.{name}".lstrip(".")].add(hint)
    return types
