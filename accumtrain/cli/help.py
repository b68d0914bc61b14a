"""The texts of `accumtrain --help` and `accumtrain --help <name>`, and docs/reference.md.

`python -m accumtrain.cli.help` prints the page.
"""

from __future__ import annotations

import textwrap
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from accumtrain.cli.choices import all_choices, describe_choice
from accumtrain.cli.compose import compose_choice, list_user_folders
from accumtrain.config.keys import (
    Key,
    list_all_keys,
    list_config_classes,
    list_keys,
    list_own_keys,
    read_class_summary,
    read_meanings,
)
from accumtrain.config.read import MISSING
from accumtrain.config.registries import REGISTRIES
from accumtrain.config.schema import Config
from accumtrain.errors import ConfigError
from accumtrain.fields import format_value, suggest_names

WIDTH = 80
NAME_WIDTH = 26  # of the column with the names of choices

# ---- --help <name> ----


def describe_names(options: Namespace) -> str:
    """Return the help on groups (`optim`), choices (`optim=adam`) and keys (`optim.lr`) that a command names.

    Raises:
        ConfigError: there is nothing of that name.
    """
    return "\n\n".join(_describe_name(name, options) for name in options.overrides)


def _describe_name(name: str, options: Namespace) -> str:
    group, equals, choice = name.partition("=")
    folders = list_user_folders(options)
    choices, keys = all_choices(folders), [key for key in list_all_keys() if key.name == group]
    if equals and group in choices:
        if choice not in choices[group]:
            raise ConfigError(f"--help {name}: no such choice; {suggest_names(choice, choices[group])}")
        return _describe_choice(group, choice, options)
    if group in choices or group in list_config_classes():
        return _describe_group(group, choices.get(group, []), folders)
    if len(keys) == 1:
        return _describe_key(keys[0])
    if keys:
        return "\n\n".join(_list_keys(f"With {kinds}", [key]) for key, kinds in _name_kinds(keys).items())
    known = [*choices, *list_config_classes(), *(key.name for key in list_all_keys())]
    remedy = suggest_names(group, known)
    if not remedy.startswith("did"):  # it lists all names
        remedy = "accumtrain --help shows the groups"
    raise ConfigError(f"--help {name}: no such group, choice or key; {remedy}")


def _name_kinds(keys: Sequence[Key]) -> dict[Key, str]:
    """Return the kinds of its group that declare a key in each of these ways, in words."""
    group = keys[0].name.partition(".")[0]
    kinds = {key: [entry.name for entry in REGISTRIES[group] if key in list_keys(entry.config, group)] for key in keys}
    return {key: f"{group}.kind={', '.join(names)}" for key, names in kinds.items() if names}


def _describe_group(group: str, choices: Iterable[str], config_dirs: Sequence[Path]) -> str:
    parts = [_title(group, read_meanings(Config).get(group, ""))]
    if choices:
        rows = ((choice, describe_choice(group, choice, config_dirs)) for choice in choices)
        parts.append("\n".join([f"Choices, {group}=<choice>", *(_row(*row) for row in rows)]))
    base, *kinds = list_config_classes().get(group, [Config])
    if base is not Config:
        parts.append(_list_keys(read_class_summary(base), list_keys(base, group)))
    for kind in kinds:
        parts.append(_list_keys(f"Keys of {group}.kind={kind.kind}", list_own_keys(kind, group)))
    return "\n\n".join(filter(None, parts))


def _describe_choice(group: str, choice: str, options: Namespace) -> str:
    title = _title(f"{group}={choice}", describe_choice(group, choice, list_user_folders(options)))
    if group not in list_config_classes():
        return title
    values = compose_choice(options, group, choice)
    record = REGISTRIES[group][values["kind"]].config if group in REGISTRIES else list_config_classes()[group][0]
    keys = _list_keys("Keys", [_with_value(key, values) for key in list_keys(record, group)])
    return "\n\n".join(filter(None, [title, keys]))


def _with_value(key: Key, values: Mapping[str, Any]) -> Key:
    """Return a key with the value that a choice gives to it as its default."""
    name = key.name.rpartition(".")[2]
    known = name in values and values[name] != MISSING
    return replace(key, default=format_value(values[name]), required=False) if known else key


def _list_keys(title: str, keys: Iterable[Key]) -> str:
    blocks = [_describe_key(key) for key in keys]
    return "\n".join([_wrap(title), *blocks]) if blocks else ""


def _describe_key(key: Key) -> str:
    value = f"<value>, required, such as {key.default}" if key.required else key.default
    allowed = "; ".join(filter(None, [key.type, key.rule]))
    return f"  {key.name}={value}\n{_wrap(f'{allowed}.', ' ' * 6)}\n{_wrap(key.meaning, ' ' * 6)}".rstrip()


def _title(name: str, about: str) -> str:
    return _wrap(f"{name}: {about}" if about else name)


def _row(name: str, about: str) -> str:
    indent = " " * NAME_WIDTH
    if len(name) > NAME_WIDTH - 4:
        return f"  {name}\n{_wrap(about, indent)}"
    return textwrap.fill(about, WIDTH, initial_indent=f"  {name}".ljust(NAME_WIDTH), subsequent_indent=indent).rstrip()


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )


# ---- docs/reference.md, which `make reference` writes anew ----


HEAD = """\
# Every key

Made from the declarations by `make reference`; `accumtrain --help optim`, `--help optim=adam` and `--help optim.lr`
show the same on a terminal, and `accumtrain --cfg job` the values of a command. `key=value` sets a key, `group=choice`
a group of them. A choice may set a key to another value than the default below: `--help group=choice` shows which."""


def page() -> str:
    """Return the text of docs/reference.md, a section for each group."""
    choices = all_choices([])
    names = [*choices, *(name for name in list_config_classes() if name not in choices)]
    sections = [_section(name, choices.get(name, [])) for name in sorted(names)]
    return "\n\n".join([HEAD, _table("## Keys without a group", list_keys(Config)), *sections]) + "\n"


def _section(group: str, choices: Iterable[str]) -> str:
    base, *kinds = list_config_classes().get(group, [Config])
    parts = [f"## {group}", read_meanings(Config).get(group, "")]
    if choices:
        rows = [f"| `{group}={choice}` | {describe_choice(group, choice, [])} |" for choice in choices]
        parts.append("\n".join(["| choice | |", "|---|---|", *rows]))
    if base is not Config:
        parts.append(_table(read_class_summary(base), list_keys(base, group)))
    parts += [
        _table(f"`{group}.kind={kind.kind}`: {read_class_summary(kind)}", list_own_keys(kind, group)) for kind in kinds
    ]
    return "\n\n".join(filter(None, parts))


def _table(title: str, keys: Iterable[Key]) -> str:
    head = [f"{title}\n", "| key | type | default | rule | meaning |", "|---|---|---|---|---|"]
    rows = []
    for key in keys:
        default = f"required, such as `{key.default}`" if key.required else f"`{key.default}`"
        rows.append(f"| `{key.name}` | {key.type} | {default} | {key.rule} | {key.meaning} |")
    return "\n".join([*head, *rows]) if rows else ""


if __name__ == "__main__":
    print(page(), end="")


# The text of `accumtrain --help`. Hydra's own help would take most of a second to compose.


TEXT = """\
accumtrain: train with the batch you want on the memory you have.

accumtrain [group=choice ...] [key=value ...]

Groups and their choices
{groups}

Examples
  accumtrain
      RevNet-38 on the embedded digits, minutes on a laptop
  accumtrain model=lenet5 batch_size=128 accum.steps=8
      a batch of 128 in the memory of 16
  accumtrain run.name=cats data=folder data.path=photos data.image_size=64
      your own photos, in a folder for each class
  accumtrain job=evaluate run.name=cats
      accuracy per class, and the worst mistakes
  accumtrain job=predict run.name=cats predict.input=new
      what is in new images
  accumtrain job=export run.name=cats export.format=tflite
      a file for other programs
  accumtrain -m batch_size=32,64,128 train.epochs=2
      a sweep, ranked at the end
  accumtrain job=plan model=resnet50 data=synthetic data.image_size=224
      which micro-batches fit into memory
  accumtrain job=verify model=revnet104
      prove exactness on this machine
  accumtrain job=info
      this machine: versions, devices, what is missing

A group, a choice or a key in words:
  accumtrain --help optim, --help optim=adam, --help optim.lr
Every key with its value: accumtrain --cfg job
The same command again continues a run.
Completion by TAB: eval "$(accumtrain --shell-completion install=bash)"
Exit codes: 0 done, 1 a bug, 2 configuration, 3 data, 4 diverged, 5 checkpoint,
6 out of memory, 7 beyond a bound of job=verify or job=export, 75 stopped: the
same command continues it, 130 interrupted in a job that can't be continued."""


def help_text(config_dirs: Iterable[Path]) -> str:
    """The text of the help, with the choices of the folders `config_dirs`."""
    choices = all_choices(config_dirs)
    wrapper = textwrap.TextWrapper(width=WIDTH, subsequent_indent=" " * 14, break_on_hyphens=False)
    groups = [wrapper.fill(f"  {group:<12}{', '.join(names)}") for group, names in choices.items()]
    return TEXT.format(groups="\n".join(groups))
