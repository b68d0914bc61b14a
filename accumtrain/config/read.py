"""From a mapping to a checked `Config` and back, and the limits on YAML that is read."""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import yaml

from accumtrain.config.check import check_config
from accumtrain.config.interpolation import (
    FromEnvironment,
    check_expressions,
    resolve_interpolations,
    restore_expressions,
)
from accumtrain.config.registries import REGISTRIES
from accumtrain.config.schema import Config
from accumtrain.errors import ConfigError
from accumtrain.fields import (
    Constraint,
    LocalPath,
    OneOf,
    Word,
    constraints_of,
    convert,
    format_value,
    join_key,
    say_types,
    suggest_names,
)

MISSING = "???"  # OmegaConf's mark for a value that the user must give
DEEPEST = 50  # lists and mappings within each other, in YAML
MOST_NODES = 100_000  # of YAML, after each alias is replaced by what it stands for
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Keys = TypeVar("Keys")


def from_mapping(mapping: Mapping[str, Any]) -> Config:
    """Return the checked configuration of a run.

    Args:
        mapping: keys that are left out have the defaults of their dataclass. Texts may hold interpolations.

    Raises:
        ConfigError: a key is unknown, one without a default is missing, or a value has the wrong type or breaks a rule.
            The message names the first mistake only.
    """
    config: Config = expand_homes(_record(Config, resolve_interpolations(mapping), ""))
    check_config(config)
    return config


def check_stored(values: Mapping[str, Any]) -> None:
    """Check the content of a config.yaml: the types of the values of each group whose kind this program has.

    Raises:
        ConfigError: a key is unknown, a value has the wrong type, or a text stands for other values than those of the
            environment.
    """
    check_expressions(values)
    for name, hint in typing.get_type_hints(Config).items():
        value = values.get(name)
        kind = value.get("kind") if isinstance(value, Mapping) else None
        is_known = name not in REGISTRIES or (isinstance(kind, str) and kind in REGISTRIES[name].entries)
        if name in values and (is_known or not isinstance(value, Mapping)):
            _field(hint, value, name, ())


def to_mapping(config: Config) -> dict[str, Any]:
    """Return plain nested dictionaries, the content of config.yaml: `from_mapping(to_mapping(c)) == c`.

    Texts from the environment are the expressions that read it, as they may be secrets.
    """
    mapping: dict[str, Any] = restore_expressions(dataclasses.asdict(config))
    return mapping


def flatten_keys(values: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted key and value of everything in nested dictionaries. An empty one is a value."""
    for name, value in values.items():
        key = f"{where}.{name}" if where else str(name)
        if isinstance(value, Mapping) and value:
            yield from flatten_keys(value, key)
        else:
            yield key, value


def list_known_keys() -> list[str]:
    """Return every dotted key of every kind, such as `model.snap_bits`, sorted."""
    keys: set[str] = set()
    for name, hint in typing.get_type_hints(Config).items():
        for record in [entry.config for entry in REGISTRIES.get(name, ())] or [hint]:
            keys |= {f"{name}.{field.name}" for field in fields(record)} if is_dataclass(record) else {name}
    return sorted(keys)


def explain_other_kind(group: str, key: str) -> str:
    """Return the words for a key that only other kinds of `group` have; empty if none has it."""
    entries = REGISTRIES.get(group, ())
    kinds = [entry.name for entry in entries if key in {field.name for field in fields(entry.config)}]
    return f"the chosen {group} has no such key, it belongs to kind {' or '.join(kinds)}" if kinds else ""


def _record(cls: type, value: Any, where: str) -> Any:
    """Return `value` as an instance of the dataclass `cls`. `where` is its dotted key, empty at the top."""
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{where}={format_value(value)}: {where} is a group of keys; set one of them, {where}.<key>=<value>"
        )
    names = [field.name for field in fields(cls)]
    for key in value:
        if key not in names:
            if said := explain_other_kind(where, key):
                raise ConfigError(f"{join_key(where, key)}: {said}; leave it out")
            owner = f"{where} (kind {value['kind']})" if "kind" in value else where or "the configuration"
            raise ConfigError(f"{join_key(where, key)}: no such key in {owner}; {suggest_names(str(key), names)}")
    missing = [key for key in fields(cls) if value.get(key.name, MISSING if has_no_default(key) else None) == MISSING]
    if missing:
        keys = {join_key(where, key.name): key.metadata.get("example", "<value>") for key in missing}
        settings = " ".join(f"{key}={example}" for key, example in keys.items())
        raise ConfigError(f"{', '.join(keys)} {'has' if len(keys) == 1 else 'have'} no value; add {settings}")
    hints, rules = typing.get_type_hints(cls), constraints_of(cls)
    given = [name for name in names if name in value]
    return cls(**{name: _field(hints[name], value[name], join_key(where, name), rules[name]) for name in given})


def has_no_default(field: Field) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _field(hint: Any, value: Any, key: str, rules: Sequence[Constraint]) -> Any:
    if key in REGISTRIES:
        kind = value.get("kind") if isinstance(value, Mapping) else value
        if (key, kind) == ("data", "tokens"):
            raise ConfigError(explain_old_tokens(value))
        hint = REGISTRIES[key][str(kind)].config
    if is_dataclass(hint):
        return _record(typing.cast(type, hint), value, key)
    if typing.get_origin(hint) is dict and value is None:
        return {}  # Hydra can replace null in YAML by a mapping, but not extend {}
    return convert(hint, value, key, partial(_explain, {key: rules}))


def _explain(rules: Mapping[str, Sequence[Constraint]], options: tuple[Any, ...], key: str, value: Any) -> str:
    """Return the rule for a value of another type than `options`, with the remedy.

    Args:
        rules: of each key; those that allow only some texts name what to write in the place of the value.
    """
    own = rules.get(key, ())
    words = [rule.rule for rule in own if isinstance(rule, Word)]
    choices = [f"{say_types(options)}; {rule.remedy()}" for rule in own if isinstance(rule, OneOf)]
    return next(iter([*words, *choices]), say_types(options) + _remedy(options, key, value))


def _remedy(options: tuple[Any, ...], key: str, value: Any) -> str:
    match value:
        case str() if {int, float} & set(options) and value.replace(".", "", 1).isdigit():
            return "; write it without quotes"
        case int() | float() if {str} == set(options) - {type(None)} and not isinstance(value, bool):
            return "; put it in quotes in the file that sets it"
        case _ if typing.get_origin(options[0]) is list:
            return f"; write {key}=[{format_value(value)}]"
    return ""


# ---- ~ at the beginning of a path, which the home directory replaces once, before anything is read ----


def expand_homes(record: Keys) -> Keys:
    """Return a configuration, or a part of it, with the home directory in the place of ~ in each LocalPath."""
    constraints, changed = constraints_of(type(record)), dict[str, Any]()
    for field in fields(record):  # type: ignore[arg-type]
        value = new = getattr(record, field.name)
        if is_dataclass(value):
            new = expand_homes(value)
        elif isinstance(value, str) and any(isinstance(rule, LocalPath) for rule in constraints[field.name]):
            new = expand_home(value)
        if new is not value:
            changed[field.name] = new
    return dataclasses.replace(record, **changed) if changed else record  # type: ignore[type-var]


def expand_home(path: str) -> str:
    """Return the path with the home directory in the place of ~ or ~user, or as it is if there is no such user."""
    if not path.startswith("~"):
        return path
    # Path.expanduser would drop slashes of a glob, and raise for an unknown user
    expanded = os.path.expanduser(path)  # noqa: PTH111
    return FromEnvironment(expanded, path.expression) if isinstance(path, FromEnvironment) else expanded


# ---- limits on YAML: an alias stands for all that it names, and nested ones multiply ----


class OverLimitError(ValueError):
    """A YAML document that would take too long to read. The message says why."""


def _parse(text: str) -> Iterator[yaml.Event]:
    """Yield the events of a YAML document. Raise OverLimitError where libyaml has a limit of its own, as from 0.2.6."""
    try:
        yield from yaml.parse(text, Loader=_LOADER)
    except yaml.scanner.ScannerError as error:
        if "nesting depth" in str(error):
            raise OverLimitError(f"it is nested more than {DEEPEST} deep") from error
        raise


def check_yaml(text: str) -> None:
    """Check the structure of a YAML document, without building any of it.

    Raises:
        OverLimitError: it is nested deeper than DEEPEST, has more than MOST_NODES nodes, or an alias of itself.
        yaml.YAMLError: it is no YAML.
    """
    sizes: dict[str, int] = {}  # nodes that an anchor stands for
    open_nodes: list[tuple[str | None, int]] = []  # lists and mappings: their anchor, and the nodes counted before them
    count = 0
    for event in _parse(text):
        match event:
            case yaml.AliasEvent():
                if event.anchor not in sizes:
                    raise OverLimitError(f"its alias *{event.anchor} stands for nothing, or for itself")
                count += sizes[event.anchor]
            case yaml.ScalarEvent():
                count += 1
                if event.anchor:
                    sizes[event.anchor] = 1
            case yaml.CollectionStartEvent():
                open_nodes.append((event.anchor, count))
                count += 1
            case yaml.CollectionEndEvent():
                anchor, before = open_nodes.pop()
                if anchor:
                    sizes[anchor] = count - before
        if len(open_nodes) > DEEPEST:
            raise OverLimitError(f"it is nested more than {DEEPEST} deep")
        if count > MOST_NODES:
            raise OverLimitError(f"it holds more than {MOST_NODES:,} values, as its aliases stand for others")


def explain_old_tokens(keys: Mapping[str, Any]) -> str:
    """Return the message for data=tokens, which is no kind any more, with what to write in its place.

    Args:
        keys: Those of data that are given, by their names.
    """
    path = Path(str(keys.get("path", "texts")))
    columns = f"data.text_column={keys.get('text_key', 'text')} data.label_column={keys.get('label_key', 'label')}"
    if path.suffix.lower() == ".npz":
        instead = f"data=npz data.path={path}"
    elif path.suffix.lower() in (".jsonl", ".ndjson"):
        instead = f"data=table data.path={path} {columns}"
    elif Path(path, "train.jsonl").is_file():
        others = [f"data.{split}_path={path}/{split}.jsonl" for split in ("val", "test")]
        there = [other for other in others if Path(other.partition("=")[2]).is_file()]
        instead = " ".join([f"data=table data.path={path}/train.jsonl", *there, columns])
    else:
        instead = f"data=texts data.path={path}"
    given = " and ".join(f"data.{key}" for key in ("text_key", "label_key") if key in keys)
    without = f", without {given}" if given else ""
    return f"data=tokens: is several kinds by the form of the data; write {instead}{without}"
