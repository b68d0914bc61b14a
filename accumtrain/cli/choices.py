"""The choices of the command line: the YAML files of conf/, and every row of a table without a YAML file."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore

from accumtrain.config.jobs import JOBS
from accumtrain.config.keys import CONF_DIR, summary_of
from accumtrain.config.read import MISSING
from accumtrain.config.registries import REGISTRIES
from accumtrain.registry import ComponentConfig, Entry


def offer_rows() -> None:
    """Let Hydra compose the rows without a YAML file, from the defaults of their dataclass."""
    store = ConfigStore.instance()
    for group in REGISTRIES:
        for row in _rows_without_file(group):
            store.store(group=group, name=row.name, node=_values(row.config), provider="accumtrain")


def all_choices(config_dirs: Iterable[Path]) -> dict[str, list[str]]:
    """The choices of each group, those of the folders `config_dirs` included. Groups and choices are sorted."""
    choices: dict[str, set[str]] = defaultdict(set, job=set(JOBS.names))
    for folder in [CONF_DIR, *config_dirs]:
        for file in folder.glob("*/*.yaml"):
            choices[file.parent.name].add(file.stem)
    for group in REGISTRIES:
        choices[group] |= {row.name for row in _rows_without_file(group)}
    return {group: sorted(choices[group]) for group in sorted(choices)}


def about_choice(group: str, choice: str, config_dirs: Iterable[Path]) -> str:
    """What a choice is, in a sentence: the first line of its YAML file, or what its row says; may be empty."""
    if group == "job":
        return JOBS[choice].about
    if file := _file(group, choice, config_dirs):
        lines = (
            line.lstrip("# ").strip() for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("#")
        )
        return next((line for line in lines if not line.startswith("@")), "")
    return summary_of(REGISTRIES[group][choice].config)


def _file(group: str, choice: str, config_dirs: Iterable[Path]) -> Path | None:
    files = (folder / group / f"{choice}.yaml" for folder in [*config_dirs, CONF_DIR])
    return next((file for file in files if file.is_file()), None)


def _rows_without_file(group: str) -> list[Entry[Any]]:
    """The kinds without a YAML file. The file may have another name than the kind: lenet5.yaml is of kind lenet."""
    files = "\n".join(file.read_text(encoding="utf-8") for file in (CONF_DIR / group).glob("*.yaml"))
    with_file = set(re.findall(r"^kind: (\S+)", files, re.MULTILINE))
    return [row for row in REGISTRIES[group] if row.name not in with_file]


def _values(config: type[ComponentConfig]) -> dict[str, Any]:
    values = {}
    for each in dataclasses.fields(config):
        if each.default is not dataclasses.MISSING:
            values[each.name] = each.default
        elif each.default_factory is not dataclasses.MISSING:
            values[each.name] = each.default_factory()
        else:
            values[each.name] = MISSING
    return values
