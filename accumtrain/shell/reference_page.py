"""docs/reference.md: every group, choice and key. `make reference` writes it anew."""

from __future__ import annotations

from collections.abc import Iterable

from accumtrain.config.declared_keys import Key, keys_of, meanings_of, own_keys, records, summary_of
from accumtrain.config.schema import Config
from accumtrain.shell.choices import about_choice, all_choices

HEAD = """\
# Every key

Made from the declarations by `make reference`; `accumtrain --help optim`, `--help optim=adam` and `--help optim.lr`
show the same on a terminal, and `accumtrain --cfg job` the values of a command. `key=value` sets a key, `group=choice`
a group of them. A choice may set a key to another value than the default below: `--help group=choice` shows which."""


def page() -> str:
    """The text of the page, a section for each group."""
    choices = all_choices([])
    names = [*choices, *(name for name in records() if name not in choices)]
    sections = [_section(name, choices.get(name, [])) for name in sorted(names)]
    return "\n\n".join([HEAD, _table("## Keys without a group", keys_of(Config)), *sections]) + "\n"


def _section(group: str, choices: Iterable[str]) -> str:
    base, *kinds = records().get(group, [Config])
    parts = [f"## {group}", meanings_of(Config).get(group, "")]
    if choices:
        rows = [f"| `{group}={choice}` | {about_choice(group, choice, [])} |" for choice in choices]
        parts.append("\n".join(["| choice | |", "|---|---|", *rows]))
    if base is not Config:
        parts.append(_table(summary_of(base), keys_of(base, group)))
    parts += [_table(f"`{group}.kind={kind.kind}`: {summary_of(kind)}", own_keys(kind, group)) for kind in kinds]
    return "\n\n".join(filter(None, parts))


def _table(title: str, keys: Iterable[Key]) -> str:
    head = [f"{title}\n", "| key | type | default | rule | meaning |", "|---|---|---|---|---|"]
    rows = [f"| `{key.name}` | {key.type} | {_default(key)} | {key.rule} | {key.meaning} |" for key in keys]
    return "\n".join([*head, *rows]) if rows else ""


def _default(key: Key) -> str:
    return f"required, such as `{key.default}`" if key.required else f"`{key.default}`"


if __name__ == "__main__":
    print(page(), end="")
