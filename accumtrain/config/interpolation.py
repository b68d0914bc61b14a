"""Interpolations in a configuration: `${...}` in a text stands for a value, `\\${` for the characters themselves.

A text that reads the environment, such as ${oc.env:TOKEN}, may be a secret. The job uses its value; what is saved and
sent to child processes is the expression.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from accumtrain.errors import ConfigError, first_line
from accumtrain.fields import walk_values

ENVIRONMENT_RESOLVER = "oc.env"  # OmegaConf's only resolver that does


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
    with _record_reads() as reads:
        value = parent[key]
        if isinstance(value, DictConfig | ListConfig):
            value = OmegaConf.to_container(value, resolve=True)
    if not reads:
        return value
    if isinstance(value, dict | list):
        raise ConfigError(f"{where}={raw}: the environment gives one text or number, not a list or mapping")
    return FromEnvironment(value, raw) if isinstance(value, str) else value


@contextmanager
def _record_reads() -> Iterator[list[str]]:
    """Yield a list that gets the name of every variable that an interpolation reads in this context."""
    names: list[str] = []

    def read(name: str, *default: Any) -> str | None:
        names.append(name)
        return oc.env(name, *default)

    OmegaConf.register_new_resolver(ENVIRONMENT_RESOLVER, read, replace=True)
    try:
        yield names
    finally:
        OmegaConf.register_new_resolver(ENVIRONMENT_RESOLVER, oc.env, replace=True)
