"""The choices of the command line: the YAML files of conf/, and every row of a table that has none of its own."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore

from accumtrain.config.conf_dir import CONF_DIR
from accumtrain.config.convert import MISSING
from accumtrain.kinds.groups import GROUPS
from accumtrain.kinds.jobs import JOBS
from accumtrain.kinds.table import Choice


def offer_rows() -> None:
    """Lets Hydra compose the rows without a YAML file, from the defaults of their dataclass."""
    store = ConfigStore.instance()
    for group, table in GROUPS.items():
        for row in table:
            if not _has_file(group, row.name):
                store.store(group=group, name=row.name, node=_values(row.config), provider="accumtrain")


def all_choices(config_dirs: Iterable[Path]) -> dict[str, list[str]]:
    """The sorted choices of each group, sorted, with those of the folders `config_dirs`."""
    choices: dict[str, set[str]] = defaultdict(set, job=set(JOBS.names))
    for folder in [CONF_DIR, *config_dirs]:
        for file in folder.glob("*/*.yaml"):
            choices[file.parent.name].add(file.stem)
    for group, table in GROUPS.items():
        choices[group] |= {name for name in table.names if not _has_file(group, name)}
    return {group: sorted(choices[group]) for group in sorted(choices)}


def _has_file(group: str, kind: str) -> bool:
    """Is there a YAML file for this kind, of whatever name, as lenet5.yaml is for the kind lenet?"""
    return any(f"\nkind: {kind}\n" in f"\n{file.read_text()}" for file in (CONF_DIR / group).glob("*.yaml"))


def _values(config: type[Choice]) -> dict[str, Any]:
    values = {}
    for each in dataclasses.fields(config):
        if each.default is not dataclasses.MISSING:
            values[each.name] = each.default
        elif each.default_factory is not dataclasses.MISSING:
            values[each.name] = each.default_factory()
        else:
            values[each.name] = MISSING
    return values
