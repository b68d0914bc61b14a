"""Refuses YAML that takes for ever to read: an alias stands for all that it names, and nested ones multiply."""

from __future__ import annotations

from typing import Any

import yaml

DEEPEST = 50  # lists and mappings within each other
MOST_NODES = 100_000  # after each alias is replaced by what it stands for
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class OverLimitError(ValueError):
    """A YAML document that is not read. The message says why."""


def check_yaml(text: str) -> None:
    """Looks at the structure of a YAML document, without building any of it.

    Raises:
        OverLimitError: it is nested deeper than DEEPEST, has more than MOST_NODES nodes, or an alias of itself.
        yaml.YAMLError: it is no YAML.
    """
    sizes: dict[str, int] = {}  # nodes that an anchor stands for
    open_nodes: list[tuple[str | None, int]] = []  # lists and mappings: their anchor, and the nodes counted before them
    count = 0
    for event in yaml.parse(text, Loader=_LOADER):
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
