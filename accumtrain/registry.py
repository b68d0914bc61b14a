"""Registries of what can be chosen: an entry per model, optimizer, schedule, loss, data source, device and job.

An entry is the one place where a choice is declared: its keys with their defaults and rules (a dataclass), its name,
and its code. The code is named as "module:attribute" and imported on first use, so registries import no TensorFlow.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from accumtrain.errors import ConfigError
from accumtrain.fields import Constraint, Role, format_value, suggest_names


def required(example: str) -> Any:
    """Declare a key without a default. The message that asks for a value shows `example`."""
    return field(metadata={"example": example})


@dataclass(kw_only=True)
class ComponentConfig:
    """The keys of a kind. `kind` is the name of its entry; a subclass sets it as the default.

    A subclass declares its own keys, each with a default unless the user must set it, and its rules in `check`.

    Attributes:
        ROLE: the role of the keys that do not say another.
    """

    kind: str = ""

    ROLE: ClassVar[Role] = Role.LEARNED

    @property
    def label(self) -> str:
        """The name of the choice in names of runs and in messages."""
        return self.kind

    def check(self) -> None:
        """Raise ConfigError if values contradict each other. Constraints on one value are declared in its type."""


Keys = TypeVar("Keys", bound=ComponentConfig)


@dataclass(frozen=True)
class Entry(Generic[Keys]):
    """An entry of a group's registry.

    Attributes:
        config: the dataclass of its keys; the default of `kind` is the entry's name.
        build: the function or class that builds it, or "module:attribute" (see `load`).
    """

    config: type[Keys]
    build: str | Callable[..., Any]

    @property
    def name(self) -> str:
        return self.config.kind


class Named(Protocol):
    @property
    def name(self) -> str: ...


EntryT = TypeVar("EntryT", bound=Named)
Built = TypeVar("Built", bound=Entry[Any])


@dataclass
class Registry(Generic[EntryT]):
    """The entries of one group, by name.

    Attributes:
        key: the dotted key whose value names an entry, such as `model.kind`.
        entries: all of them; those that are not listed are chosen by code only, and no list of choices has them.
    """

    key: str
    entries: dict[str, EntryT] = field(default_factory=dict)
    _unlisted: set[str] = field(default_factory=set)

    def add(self, *entries: EntryT, listed: bool = True) -> None:
        """Raise ValueError if a name is taken, or is not a letter or _, then letters, digits, - and _."""
        for entry in entries:
            if not entry.name.replace("-", "_").isidentifier():
                raise ValueError(f"{self.key}={entry.name!r}: a name is a letter or _, then letters, digits, - and _")
            if entry.name in self.entries:
                raise ValueError(f"{self.key}={entry.name} is declared already; choose another name")
            self.entries[entry.name] = entry
            if not listed:
                self._unlisted.add(entry.name)

    def __getitem__(self, name: str) -> EntryT:
        """Raise ConfigError for an unknown name."""
        if name not in self.entries:
            raise ConfigError(
                f"{self.key}={name}: no such {self.key.rpartition('.')[2]}; {suggest_names(name, self.names)}"
            )
        return self.entries[name]

    def build(self: Registry[Built], config: ComponentConfig, *arguments: Any) -> Any:
        """Return what the entry of this kind builds from its configuration. Raise ConfigError for an unknown kind."""
        return load(self[config.kind].build)(config, *arguments)

    def __iter__(self) -> Iterator[EntryT]:
        return (entry for entry in self.entries.values() if entry.name not in self._unlisted)

    @property
    def names(self) -> list[str]:
        return [entry.name for entry in self]


@dataclass(frozen=True, eq=False)
class NameIn(Constraint):
    """A constraint: text that names an entry of a registry, or is one of `others`."""

    registry: Registry[Any]
    others: tuple[str, ...] = ()

    @property
    def choices(self) -> tuple[str, ...]:
        return (*self.others, *self.registry.names)

    def check(self, key: str, value: Any) -> None:
        if value not in self.choices:
            raise ConfigError(f"{key}={format_value(value)}: no such choice; {suggest_names(str(value), self.choices)}")


@dataclass(frozen=True, eq=False)
class NamesIn(Constraint):
    """A constraint: a list of different texts, each of which names an entry of a registry. null passes."""

    registry: Registry[Any]

    def check(self, key: str, value: Any) -> None:
        for place, name in enumerate(value or []):
            NameIn(self.registry).check(key, name)
            if name in value[:place]:
                raise ConfigError(f"{key}={format_value(value)}: {name} is given twice; leave one out")

    def __str__(self) -> str:
        return f"each one of {', '.join(self.registry.names)}"


def load(target: str | Callable[..., Any]) -> Callable[..., Any]:
    """Return the object that "module:attribute" names, which is imported. Return a function or class unchanged."""
    if not isinstance(target, str):
        return target
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def module_of(code: str | Callable[..., Any]) -> str:
    """Return the name of the module of a function or class, or of what "module:attribute" names."""
    return code.partition(":")[0] if isinstance(code, str) else code.__module__


def with_kind(
    name: str, config: type[ComponentConfig], base: type[ComponentConfig] = ComponentConfig
) -> type[ComponentConfig]:
    """Return `config` if the default of its `kind` is `name`, else a subclass with that default.

    Raises:
        TypeError: `config` is not a dataclass that inherits from `base`.
    """
    if not (is_dataclass(config) and isinstance(config, type) and issubclass(config, base)):
        raise TypeError(f"{config!r} must be a dataclass that inherits from {base.__name__}")
    if any(key.name == "kind" and key.default == name for key in fields(config)):
        return config
    made = make_dataclass(config.__name__, [("kind", str, field(default=name))], bases=(config,), kw_only=True)
    made.__module__ = config.__module__
    made.__doc__ = "Added by a program or a package." if config is base else config.__doc__
    return made
