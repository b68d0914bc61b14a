"""log.tracker=wandb: records in a run of Weights & Biases, as its environment variables say (WANDB_MODE, ...)."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accumtrain.runs.tracker import identifier, metrics, numbers

PROJECT = "accumtrain"  # unless WANDB_PROJECT says another


class WandbTracker:
    """A run of Weights & Biases. A continued run of ours continues it; what it has been told already stays."""

    def __init__(self, name: str, folder: Path, hyperparameters: Mapping[str, Any]):
        import wandb

        number = identifier(folder, "wandb", lambda: uuid.uuid4().hex[:12])
        self._completed = False
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=name,
            id=number,
            resume="allow",
            dir=folder,
            config=dict(hyperparameters),
            settings=wandb.Settings(console="off", silent=True),
        )

    def log(self, record: Mapping[str, Any]) -> None:
        self._run.log(metrics(record), step=record["step"])

    def finish(self, summary: Mapping[str, Any]) -> None:
        self._run.summary.update(dict(numbers(summary, "summary")))
        self._completed = summary["status"] == "completed"

    def close(self) -> None:
        self._run.finish(exit_code=0 if self._completed else 1)
