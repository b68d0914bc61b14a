"""Interpolations in a configuration: `${...}` in a text stands for a value, `\\${` for the characters themselves.

A text that reads the environment, such as ${oc.env:TOKEN}, may be a secret. The job uses its value. An expression that
reads it again is saved and sent to child processes. It refers to no other key, so it takes no longer than its length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from accumtrain.errors import ConfigError, first_line
from accumtrain.fields import shorten, walk_values

ENVIRONMENT_RESOLVER = "oc.env"  # OmegaConf's only resolver that does
_OTHER = re.compile(r"(?<!\\)(?:\\\\)*\$\{(?!oc\.(?:env|decode):)")  # an interpolation that no saved text has
_MOST_READS = 100  # of the environment, by a saved text
_MARK = "FromEnvironment{}Mark"  # stands for a text of the environment


class FromEnvironment(str):
    """A text that was read from the environment, with the expression that has read it."""

    expression: str

    def __new__(cls, value: str, expression: str = "") -> FromEnvironment:
        text = super().__new__(cls, value)
        text.expression = expression
        return text


def resolve_interpolations(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `mapping` with values in the place of interpolations.

    Raises:
        ConfigError: an interpolation has no value, or reads a list or a mapping from the environment.
    """
    if not any(_is_interpolated(value) for _, value in walk_values(mapping)):
        return mapping
    try:
        tree = OmegaConf.create(dict(mapping))
        return {str(key): _value(value, tree, key, str(key)) for key, value in mapping.items()}
    except OmegaConfBaseException as error:
        raise ConfigError(
            f"{first_line(error)}; accumtrain --cfg job lists all keys; write \\${{ for a plain ${{ in a text"
        ) from error


def check_expressions(values: Mapping[str, Any]) -> None:
    """Check saved values. Raise ConfigError for a text with an interpolation that `restore_expressions` does not write.

    Those that stand for other keys would double with each key that holds two of them.
    """
    for key, value in walk_values(values):
        if not _is_interpolated(value):
            continue
        if _OTHER.search(value) or value.count("${") > _MOST_READS:
            raise ConfigError(
                f"{key}={shorten(value)}: stands for other values, and a saved text reads the environment alone, as "
                "${oc.env:NAME} does"
            )


def restore_expressions(value: Any) -> Any:
    """Return the inverse of `resolve_interpolations`: expressions that read the environment, and escaped texts."""
    match value:
        case Mapping():
            return {key: restore_expressions(item) for key, item in value.items()}
        case list():
            return [restore_expressions(item) for item in value]
        case FromEnvironment():
            return value.expression
        case str():
            return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
        case _:
            return value


def _is_interpolated(value: Any) -> bool:
    return isinstance(value, str) and "${" in value


def _value(raw: Any, parent: DictConfig | ListConfig, key: Any, where: str) -> Any:
    """Return the value of `raw`, which stands at `key` of `parent`. `where` is its dotted key."""
    if isinstance(raw, Mapping):
        return {name: _value(item, parent[key], name, f"{where}.{name}") for name, item in raw.items()}
    if isinstance(raw, list):
        return [_value(item, parent[key], index, f"{where}[{index}]") for index, item in enumerate(raw)]
    if not _is_interpolated(raw):
        return raw
    reads: list[tuple[Any, ...]] = []

    def read(*arguments: Any) -> Any:
        reads.append(arguments)
        return oc.env(*arguments)

    with _environment_by(read):
        value = parent[key]
        if isinstance(value, DictConfig | ListConfig):
            value = OmegaConf.to_container(value, resolve=True)
    if not reads:
        return value
    if isinstance(value, dict | list):
        raise ConfigError(f"{where}={raw}: the environment gives one text or number, not a list or mapping")
    if not isinstance(value, str):
        return value
    return FromEnvironment(value, _expand(parent, key) if _OTHER.search(raw) else raw)


def _expand(parent: DictConfig | ListConfig, key: Any) -> str:
    """Return the expression that stands at `key`, with the expressions of other keys in the place of these."""
    reads: list[str] = []

    def mark(*arguments: Any) -> str:
        reads.append(f"${{{ENVIRONMENT_RESOLVER}:{','.join(map(_quote, arguments))}}}")
        return _MARK.format(len(reads) - 1)

    with _environment_by(mark):
        text: str = restore_expressions(parent[key])
    for number, expression in enumerate(reads):
        text = text.replace(_MARK.format(number), expression)
    return text


def _quote(argument: Any) -> str:
    """Return an argument of a resolver as OmegaConf's grammar writes it."""
    return "null" if argument is None else "'" + re.sub(r"(\\*)'", r"\1\1\'", str(argument)) + "'"


@contextmanager
def _environment_by(read: Callable[..., Any]) -> Iterator[None]:
    """Have interpolations of the environment give what a function returns, of the name and the default."""
    OmegaConf.register_new_resolver(ENVIRONMENT_RESOLVER, read, replace=True)
    try:
        yield
    finally:
        OmegaConf.register_new_resolver(ENVIRONMENT_RESOLVER, oc.env, replace=True)
