"""The config groups and their tables."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from accumtrain.kinds.devices import DEVICES
from accumtrain.kinds.losses import LOSSES
from accumtrain.kinds.models import MODELS
from accumtrain.kinds.sources import SOURCES
from accumtrain.kinds.table import Kind, Table, module_of
from accumtrain.optim.config import OPTIMIZERS
from accumtrain.optim.schedules import SCHEDULES

GROUPS: dict[str, Table[Any]] = {
    "model": MODELS,
    "optim": OPTIMIZERS,
    "schedule": SCHEDULES,
    "loss": LOSSES,
    "data": SOURCES,
    "device": DEVICES,
}
OWN_CODE = "accumtrain."  # where the code of own rows is


def kinds_with(group: str, key: str) -> list[str]:
    """The names of the kinds of `group` that have the key `key`; empty if there is no such group."""
    return [row.name for row in GROUPS.get(group, ()) if key in {each.name for each in fields(row.config)}]


def chosen_rows(config: Any) -> list[Kind[Any]]:
    """The row of each group that a configuration chooses."""
    return [table[getattr(config, group).kind] for group, table in GROUPS.items()]


def are_own_rows(config: Any) -> bool:
    """Whether accumtrain's own code builds all that a configuration chooses."""
    listed = all(getattr(config, group).kind in table.names for group, table in GROUPS.items())
    return listed and all(module_of(row.build).startswith(OWN_CODE) for row in chosen_rows(config))


def has_own_layers(config: Any) -> bool:
    """Return whether all layers are accumtrain's, which choose the dtype of their kernels; Keras's do not."""
    return config.model.kind != "keras" and are_own_rows(config)
