"""The choices of the command line: the YAML files of conf/, and every registered entry without a YAML file."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore

from accumtrain.config.jobs import JOBS
from accumtrain.config.keys import CONF_DIR, default_values, read_class_summary
from accumtrain.config.read import MISSING
from accumtrain.config.registries import REGISTRIES
from accumtrain.errors import ConfigError
from accumtrain.registry import Entry, module_of
from accumtrain.tasks.config import TaskEntry


def offer_entries() -> None:
    """Store the entries without a YAML file for Hydra: the default of each key, MISSING for one without.

    Raises:
        ConfigError: an added entry has the name of a choice of accumtrain's, which would be taken in its place.
    """
    store = ConfigStore.instance()
    for group in REGISTRIES:
        for entry in _entries_without_file(group):
            if (CONF_DIR / group / f"{entry.name}.yaml").exists():
                raise ConfigError(
                    f"{group}={entry.name}: {module_of(entry.build)} adds a choice of this name, which accumtrain has "
                    "already; register it under another name"
                )
            keys = {field.name: MISSING for field in dataclasses.fields(entry.config)} | default_values(entry.config)
            if isinstance(entry, TaskEntry):  # its loss takes the place of the default one
                loss = {"override /loss": entry.loss.kind}
                node: dict[str, Any] = {"defaults": [loss], group: keys}
                store.store(group=group, name=entry.name, node=node, package="_global_", provider="accumtrain")
                continue
            store.store(group=group, name=entry.name, node=keys, provider="accumtrain")


def all_choices(config_dirs: Iterable[Path]) -> dict[str, list[str]]:
    """Return the sorted choices of each group, those of the folders `config_dirs` included."""
    choices: dict[str, set[str]] = defaultdict(set, job=set(JOBS.names))
    for folder in [CONF_DIR, *config_dirs]:
        for file in folder.glob("*/*.yaml"):
            choices[file.parent.name].add(file.stem)
    for group in REGISTRIES:
        choices[group] |= {entry.name for entry in _entries_without_file(group)}
    return {group: sorted(choices[group]) for group in sorted(choices)}


def describe_choice(group: str, choice: str, config_dirs: Iterable[Path]) -> str:
    """Return a sentence about a choice, by its YAML file or its entry. It may be empty."""
    if group == "job":
        return JOBS[choice].about
    files = (folder / group / f"{choice}.yaml" for folder in [*config_dirs, CONF_DIR])
    if file := next((file for file in files if file.is_file()), None):
        comments = (line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("#"))
        lines = (comment.lstrip("# ").strip() for comment in comments)
        return next((line for line in lines if not line.startswith("@")), "")
    return read_class_summary(REGISTRIES[group][choice].config)


def _entries_without_file(group: str) -> list[Entry[Any]]:
    """Return the kinds that no YAML file is of. A file may have another name: lenet5.yaml is of kind lenet."""
    files = "\n".join(file.read_text(encoding="utf-8") for file in (CONF_DIR / group).glob("*.yaml"))
    with_file = set(re.findall(r"^ *kind: (\S+)", files, re.MULTILINE))
    return [entry for entry in REGISTRIES[group] if entry.name not in with_file]
