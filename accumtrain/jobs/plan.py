"""job=plan: the memory of each micro-batch size, under each memory policy, on the configured device."""

from __future__ import annotations

from typing import Any

from accumtrain.config.schema import Config
from accumtrain.kinds.devices import DEVICES
from accumtrain.kinds.table import load


def run(config: Config) -> dict[str, Any]:
    """Prints a table and returns the content of plan.json. Trains nothing.

    Raises:
        AccumtrainError: the run would fail for another reason than memory.
    """
    plan: dict[str, Any] = load(DEVICES[config.device.kind].plan)(config)
    return plan
