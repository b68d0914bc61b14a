"""plan.json, whichever way it was made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from accumtrain.config import Config
from accumtrain.errors import CheckpointError
from accumtrain.runs import Run, write_json


def write_plan(config: Config, within: dict[str, Any], trials: Sequence[Any]) -> tuple[dict[str, Any], Path]:
    """Writes plan.json into the run's folder. Returns its content and the folder.

    Args:
        within: what the trials have to fit in.
        trials: dataclasses.

    Raises:
        CheckpointError: the folder can't be made.
    """
    plan = {
        "status": "completed",
        "model": config.model.label,
        "optimizer": config.optim.kind,
        "precision": config.precision,
        "batch_size": config.batch_size,
        **within,
        "trials": [asdict(trial) for trial in trials],
    }
    directory = Run(config).path
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{directory} can't be made: {error.strerror}; choose another run.dir") from error
    write_json(directory / "plan.json", plan)
    return plan, directory


def title(config: Config) -> str:
    """What was planned, in one line."""
    return f"{config.model.label}, {config.optim.kind}, {config.precision}, batch_size={config.batch_size}"
