"""The services that a run's metrics can be sent to as well, chosen by log.tracker."""

from __future__ import annotations

from dataclasses import dataclass

from accumtrain.kinds.table import Table

NONE = "none"  # value of log.tracker


@dataclass(frozen=True)
class TrackerKind:
    """A row of the trackers.

    Attributes:
        open: "module:function" of (name of the run, its folder, its configuration by dotted key) -> Tracker.
        package: the module that must be installed.
        extra: of accumtrain, which installs it.
    """

    name: str
    open: str
    package: str
    extra: str


TRACKERS: Table[TrackerKind] = Table("log.tracker")
TRACKERS.add(
    TrackerKind("mlflow", "accumtrain.runs.mlflow_tracker:MlflowTracker", "mlflow", "mlflow"),
    TrackerKind("wandb", "accumtrain.runs.wandb_tracker:WandbTracker", "wandb", "wandb"),
)
