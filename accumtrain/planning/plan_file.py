"""The content of plan.json, for plans by probes and by a TPU's compiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from accumtrain.config.schema import Config


def plan_result(config: Config, within: dict[str, Any], trials: Sequence[Any]) -> dict[str, Any]:
    """The content of plan.json.

    Args:
        within: the limits that trials must fit into, by name.
        trials: dataclasses of results.
    """
    return {
        "status": "completed",
        "model": config.model.label,
        "optimizer": config.optim.kind,
        "precision": config.precision,
        "batch_size": config.batch_size,
        **within,
        "trials": [asdict(trial) for trial in trials],
    }


def title(config: Config) -> str:
    """Model, optimizer, precision and batch size in one line."""
    return f"{config.model.label}, {config.optim.kind}, {config.precision}, batch_size={config.batch_size}"
