"""Every declared key: its type, default, rule and meaning, and the keys whose values are not the defaults.

All is read from the dataclass that declares a key. A meaning stands in the docstring of the class as "`key`: text", and
may go on in the lines below. A subclass may say it anew.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import UnionType
from typing import Any

from accumtrain.config.read import has_no_default
from accumtrain.config.registries import REGISTRIES
from accumtrain.config.schema import Config
from accumtrain.fields import Constraint, OneOf, Word, constraints_of, describe_type, format_value
from accumtrain.registry import ComponentConfig, NameIn

KIND = "kind"  # key of a group whose value is chosen by group=choice
MEANING = re.compile(r"((?:`\w+`(?:, )?)+): (.+)")


_IN_WHEEL = Path(__file__).resolve().parents[1] / "conf"
CONF_DIR = _IN_WHEEL if _IN_WHEEL.is_dir() else _IN_WHEEL.parents[1] / "conf"  # in a checkout beside the package

# ---- values that are not the defaults ----


def find_changed_keys(values: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return default and value of each key that differs, by dotted key.

    The default of a group is its default kind; those of a group's keys are those of the kind that `values` choose. The
    default of a key without one, and of all keys of a kind that this program does not know, is None.

    Args:
        values: the content of a config.yaml. A key that it lacks has its default.
    """
    default_groups = dataclasses.asdict(Config())
    for group, registry in REGISTRIES.items():
        default, given = default_groups[group][KIND], values.get(group)
        chosen = given.get(KIND, default) if isinstance(given, Mapping) else default
        is_known = isinstance(chosen, str) and chosen in registry.entries  # that of a damaged file may be a list
        known = default_values(registry[chosen].config) if is_known else {}
        default_groups[group] = {**known, KIND: default}
    defaults = dict(flatten_groups(default_groups))
    found = dict(flatten_groups(values))
    return {key: (defaults.get(key), value) for key, value in found.items() if value != defaults.get(key)}


def default_values(record: type[ComponentConfig]) -> dict[str, Any]:
    """Return the default of each key that has one, by name."""
    return {field.name: _default_of(field) for field in dataclasses.fields(record) if not has_no_default(field)}


def _default_of(field: dataclasses.Field) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def flatten_groups(values: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted key and value of all but the mappings of groups. optim.args and the like stay as they are."""
    for key, value in values.items():
        if isinstance(value, Mapping) and key in list_config_classes() and not where:
            yield from flatten_groups(value, f"{key}.")
        else:
            yield f"{where}{key}", value


def label_of(group: str, values: Mapping[str, Any]) -> str:
    """Return the label of the choice of a group; its kind if the keys do not tell, and "-" without one.

    Args:
        values: the content of a config.yaml, by dotted key.
    """
    kind = values.get(f"{group}.{KIND}", "-")
    if kind not in REGISTRIES[group].names:
        return str(kind)
    record = REGISTRIES[group][kind].config
    names = [field.name for field in dataclasses.fields(record) if f"{group}.{field.name}" in values]
    with suppress(TypeError):  # a key is missing, or has a value of another type
        return str(record(**{name: values[f"{group}.{name}"] for name in names}).label)
    return str(kind)


# ---- what is declared ----


@dataclasses.dataclass(frozen=True)
class Key:
    """A key as help and reference describe it.

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


def list_keys(record: type, group: str = "") -> list[Key]:
    """Return the keys that a dataclass declares or inherits, without those that are groups of keys.

    Args:
        group: the dotted key of the record; empty for Config.
    """
    hints, rules, meanings = typing.get_type_hints(record), constraints_of(record), read_meanings(record)
    choices = {name: _choices(hint, rules[name]) for name, hint in hints.items()}
    return [
        Key(
            name=f"{group}.{field.name}" if group else field.name,
            type=_describe_types(hints[field.name], choices[field.name]),
            default=field.metadata.get("example", "") if has_no_default(field) else format_value(_default_of(field)),
            required=has_no_default(field),
            rule=", ".join(str(rule).removeprefix("must be ") for rule in rules[field.name] if str(rule)),
            meaning=meanings.get(field.name, ""),
            choices=choices[field.name],
        )
        for field in dataclasses.fields(record)
        if field.name not in (KIND, *REGISTRIES) and not dataclasses.is_dataclass(hints[field.name])
    ]


def list_config_classes() -> dict[str, list[Any]]:
    """Return the dataclasses of each group of keys: one, or for a group of choices the base class and all kinds."""
    return {
        name: [hint, *(entry.config for entry in REGISTRIES.get(name, ()))]
        for name, hint in typing.get_type_hints(Config).items()
        if dataclasses.is_dataclass(hint)
    }


def list_all_keys() -> list[Key]:
    """Return every key of every kind. A key that kinds declare in different ways is listed for each way."""
    in_groups = (
        key for name, classes in list_config_classes().items() for cls in classes for key in list_keys(cls, name)
    )
    return list(dict.fromkeys([*list_keys(Config), *in_groups]))


def list_own_keys(record: type[ComponentConfig], group: str) -> list[Key]:
    """Return the keys of a kind that the base class of its group does not have, or declares in another way."""
    common = list_keys(list_config_classes()[group][0], group)
    return [key for key in list_keys(record, group) if key not in common]


def read_meanings(record: type) -> dict[str, str]:
    """Return the meanings of the keys that a class declares or inherits, by name."""
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


def read_class_summary(record: type) -> str:
    """Return the text of a class's own docstring before the first meaning. It is empty without a docstring."""
    text = ""
    for line in _lines(record):
        if MEANING.fullmatch(line) or line == "Attributes:":
            break
        text = f"{text} {line}".strip()
    return text


def _choices(hint: Any, rules: tuple[Constraint, ...]) -> tuple[str, ...]:
    listed = [choice for rule in rules if isinstance(rule, OneOf | NameIn) for choice in rule.choices]
    words = [rule.word for rule in rules if isinstance(rule, Word)]
    return (*(("true", "false") if bool in _options(hint) else ()), *listed, *words)


def _lines(cls: type) -> list[str]:
    """Return the lines of a class's own docstring, unless `dataclass` has made it."""
    own = cls.__dict__.get("__doc__") or ""
    made_by_dataclass = own.startswith(f"{cls.__name__}(")
    return [] if made_by_dataclass or cls is object else [line.strip() for line in inspect.cleandoc(own).splitlines()]


def _options(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if isinstance(hint, UnionType) else (hint,)


def _describe_types(hint: Any, choices: tuple[str, ...]) -> str:
    words = [
        describe_type(option) for option in _options(hint) if option is not bool and not (option is str and choices)
    ]
    *first, last = [*choices, *words]
    return f"{', '.join(first)} or {last}" if first else last
