"""The text of `accumtrain --help <name>`, where the name is that of a group, of a choice or of a key."""

from __future__ import annotations

import textwrap
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from accumtrain.config.convert import MISSING
from accumtrain.config.declared_keys import Key, all_keys, keys_of, meanings_of, own_keys, records, summary_of
from accumtrain.config.schema import Config
from accumtrain.errors import ConfigError
from accumtrain.kinds.groups import GROUPS
from accumtrain.kinds.values import show, suggest
from accumtrain.shell.choices import about_choice, all_choices
from accumtrain.shell.compose import choice_values, own_folders

WIDTH = 80


def help_on(options: Namespace) -> str:
    """What there is to say of the words of the command: groups (`optim`), choices (`optim=adam`), keys (`optim.lr`).

    Raises:
        ConfigError: there is nothing of that name.
    """
    return "\n\n".join(_help_on(name, options) for name in options.overrides)


def _help_on(name: str, options: Namespace) -> str:
    group, equals, choice = name.partition("=")
    folders = own_folders(options)
    choices, keys = all_choices(folders), [key for key in all_keys() if key.name == group]
    if equals and group in choices:
        if choice not in choices[group]:
            raise ConfigError(f"--help {name}: no such choice; {suggest(choice, choices[group])}")
        return _of_choice(group, choice, options)
    if group in choices or group in records():
        return _of_group(group, choices.get(group, []), folders)
    if keys:
        return "\n".join(map(_of_key, keys))
    known = [*choices, *records(), *(key.name for key in all_keys())]
    raise ConfigError(f"--help {name}: no such group, choice or key; {_nearest(group, known)}")


def _nearest(name: str, known: list[str]) -> str:
    remedy = suggest(name, known)
    return remedy if remedy.startswith("did") else "accumtrain --help shows the groups"


def _of_group(group: str, choices: Iterable[str], config_dirs: Sequence[Path]) -> str:
    parts = [_title(group, meanings_of(Config).get(group, ""))]
    if choices:
        rows = ((choice, about_choice(group, choice, config_dirs)) for choice in choices)
        parts.append("\n".join([f"Choices, {group}=<choice>", *(_row(*row) for row in rows)]))
    base, *kinds = records().get(group, [Config])
    if base is not Config:
        parts.append(_keys(summary_of(base), keys_of(base, group)))
    for kind in kinds:
        parts.append(_keys(f"Keys of {group}.kind={kind.kind}", own_keys(kind, group)))
    return "\n\n".join(filter(None, parts))


def _of_choice(group: str, choice: str, options: Namespace) -> str:
    title = _title(f"{group}={choice}", about_choice(group, choice, own_folders(options)))
    if group not in records():
        return title
    values = choice_values(options, group, choice)
    record = GROUPS[group][values["kind"]].config if group in GROUPS else records()[group][0]
    return "\n\n".join([title, _keys("Keys", [_with_value(key, values) for key in keys_of(record, group)])])


def _with_value(key: Key, values: Mapping[str, Any]) -> Key:
    name = key.name.rpartition(".")[2]
    known = name in values and values[name] != MISSING
    return replace(key, default=show(values[name]), required=False) if known else key


def _keys(title: str, keys: Iterable[Key]) -> str:
    blocks = [_of_key(key) for key in keys]
    return "\n".join([_wrapped(title, ""), *blocks]) if blocks else ""


def _of_key(key: Key) -> str:
    value = f"<value>, required, such as {key.default}" if key.required else key.default
    allowed = "; ".join(filter(None, [key.type, key.rule]))
    return "\n".join(
        [f"  {key.name}={value}", _wrapped(f"{allowed}.", " " * 6), _wrapped(key.meaning, " " * 6)]
    ).rstrip()


def _title(name: str, about: str) -> str:
    return _wrapped(f"{name}: {about}" if about else name, "")


def _row(name: str, about: str) -> str:
    indent = 26
    if len(name) > indent - 4:
        return f"  {name}\n{_wrapped(about, ' ' * indent)}"
    return textwrap.fill(
        about, WIDTH, initial_indent=f"  {name:<{indent - 2}}", subsequent_indent=" " * indent
    ).rstrip()


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )
