"""The config groups and their tables."""

from __future__ import annotations

from typing import Any

from accumtrain.kinds.devices import DEVICES
from accumtrain.kinds.losses import LOSSES
from accumtrain.kinds.models import MODELS
from accumtrain.kinds.optimizers import OPTIMIZERS
from accumtrain.kinds.schedules import SCHEDULES
from accumtrain.kinds.sources import SOURCES
from accumtrain.kinds.table import Table

GROUPS: dict[str, Table[Any]] = {
    "model": MODELS,
    "optim": OPTIMIZERS,
    "schedule": SCHEDULES,
    "loss": LOSSES,
    "data": SOURCES,
    "device": DEVICES,
}
