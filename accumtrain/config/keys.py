"""Every declared key: type, rule, meaning; which are changed."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any

from accumtrain.config.jobs import JOBS
from accumtrain.config.read import has_no_default
from accumtrain.config.registries import REGISTRIES
from accumtrain.config.schema import Config
from accumtrain.fields import Constraint, OneOf, Word, constraints_of, describe_type, format_value
from accumtrain.registry import ComponentConfig, NameIn

# Which keys of a configuration have other values than their defaults.


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
    for group, table in REGISTRIES.items():
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


# Where the YAML files are: beside the package in a checkout, inside it in a wheel.


def _find_conf_dir() -> Path:
    package = Path(__file__).resolve().parents[1]
    inside_wheel = package / "conf"
    return inside_wheel if inside_wheel.is_dir() else package.parent / "conf"


CONF_DIR = _find_conf_dir()


# What there is to say of every key: its type, default, rule and meaning, read from the dataclass that declares it.
#
# A meaning stands in the docstring of the class as "`key`: text", and may go on in the lines below. A subclass may
# say it anew.


MEANING = re.compile(r"((?:`\w+`(?:, )?)+): (.+)")
NAMES_A_ROW = "kind"  # chosen by group=choice


@dataclasses.dataclass(frozen=True)
class Key:
    """What there is to say of a key.

    Attributes:
        name: the dotted key.
        type: what the value may be, in words.
        default: as written on the command line.
        required: there is no default; `default` is an example.
        rule: what else must hold of the value; may be empty.
        choices: texts that the value can be; there may be other values.
    """

    name: str
    type: str
    default: str
    required: bool
    rule: str
    meaning: str
    choices: tuple[str, ...]


def keys_of(record: type, group: str = "") -> list[Key]:
    """The keys that a dataclass declares or inherits, without those that are groups of keys.

    Args:
        group: the dotted key of the record; empty for Config.
    """
    hints, rules, meanings = typing.get_type_hints(record), constraints_of(record), meanings_of(record)
    choices = {name: _choices(name, hints[name], rules[name]) for name in hints if name in rules}
    return [
        Key(
            name=f"{group}.{field.name}" if group else field.name,
            type=_type(hints[field.name], choices[field.name]),
            default=_default(field),
            required=has_no_default(field),
            rule=", ".join(str(rule).removeprefix("must be ") for rule in rules[field.name] if str(rule)),
            meaning=meanings.get(field.name, ""),
            choices=choices[field.name],
        )
        for field in dataclasses.fields(record)
        if field.name not in (NAMES_A_ROW, *REGISTRIES) and not dataclasses.is_dataclass(hints[field.name])
    ]


def records() -> dict[str, list[Any]]:
    """The dataclasses of each group of keys: one, or for a group of choices the base class and that of each row."""
    hints = typing.get_type_hints(Config)
    found: dict[str, list[Any]] = {}
    for field in dataclasses.fields(Config):
        if field.name in REGISTRIES:
            found[field.name] = [hints[field.name], *(row.config for row in REGISTRIES[field.name])]
        elif dataclasses.is_dataclass(hints[field.name]):
            found[field.name] = [hints[field.name]]
    return found


def all_keys() -> list[Key]:
    """Every key of every kind. A key that kinds declare in different ways is listed for each way."""
    keys = [
        *keys_of(Config),
        *(key for name, found in records().items() for cls in found for key in keys_of(cls, name)),
    ]
    return list(dict.fromkeys(keys))


def own_keys(record: type[ComponentConfig], group: str) -> list[Key]:
    """The keys of a row that the base class of its group does not have, or for which it says something else."""
    common = keys_of(records()[group][0], group)
    return [key for key in keys_of(record, group) if key not in common]


def meanings_of(record: type) -> dict[str, str]:
    """The meanings of the keys of a class, by name, and of those that it inherits."""
    meanings: dict[str, str] = {}
    for cls in reversed(record.__mro__):
        names: list[str] = []
        for line in _lines(cls):
            if match := MEANING.fullmatch(line):
                names = re.findall(r"`(\w+)`", match[1])
                meanings |= dict.fromkeys(names, match[2][0].upper() + match[2][1:])
            elif line:
                meanings |= {name: f"{meanings[name]} {line}" for name in names}
            else:
                names = []
    return meanings


def summary_of(record: type) -> str:
    """What a class is: the text of its docstring before the first meaning. Empty without a docstring of its own."""
    text = ""
    for line in _lines(record):
        if MEANING.fullmatch(line) or line == "Attributes:":
            break
        text = f"{text} {line}".strip()
    return text


def _choices(name: str, hint: Any, rules: tuple[Constraint, ...]) -> tuple[str, ...]:
    if name == "job":
        return tuple(JOBS.names)
    listed = [choice for rule in rules if isinstance(rule, OneOf | NameIn) for choice in rule.choices]
    words = [rule.word for rule in rules if isinstance(rule, Word)]
    return (*(("true", "false") if bool in _options(hint) else ()), *listed, *words)


def _lines(cls: type) -> list[str]:
    own = cls.__dict__.get("__doc__") or ""
    made_by_dataclass = own.startswith(f"{cls.__name__}(")
    return [] if made_by_dataclass or cls is object else [line.strip() for line in inspect.cleandoc(own).splitlines()]


def _options(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if isinstance(hint, UnionType) else (hint,)


def _type(hint: Any, choices: tuple[str, ...]) -> str:
    words = [
        describe_type(option) for option in _options(hint) if option is not bool and not (option is str and choices)
    ]
    *first, last = [*choices, *words]
    return f"{', '.join(first)} or {last}" if first else last


def _default(field: dataclasses.Field) -> str:
    if has_no_default(field):
        return str(field.metadata.get("example", ""))
    return format_value(field.default if field.default_factory is dataclasses.MISSING else field.default_factory())
