"""The measure that decides which state is the best, the states of a run, and the trackers: `BestBy`, `TRACKERS`."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accumtrain.registry import Registry
from accumtrain.tasks.config import LOSS, METRICS, TASKS, Code, LossConfig, TaskConfig, chosen_metrics

BEST_STATE, LAST_STATE = STATES = ("best", "last")  # of a run


@dataclass(frozen=True)
class BestBy:
    """The measure that decides which state is the best: a metric, then the loss; or the loss alone."""

    metric: str
    higher_is_better: bool

    @classmethod
    def of(
        cls,
        task: TaskConfig,
        loss: LossConfig,
        chosen: Sequence[str] | None,
        monitor: str | None,
        measured: Collection[str] | None = None,
    ) -> BestBy:
        """Return what a run monitors. Without a choice it is the first metric, or else the loss.

        Args:
            chosen: eval.metrics.
            monitor: train.monitor.
            measured: names of the metrics that are measured; None is those that the keys tell.
        """
        best = TASKS[task.kind].best
        if measured is None:
            measured = [metric.name for metric in chosen_metrics(task, loss, chosen)]
        first = [best] if chosen is None and best in measured else chosen
        name = monitor or (first[0] if first else LOSS)
        return cls(name, name != LOSS and METRICS[name].higher_is_better)

    def rank(self, result: Mapping[str, Any]) -> tuple[float, float]:
        """Return the rank of an evaluation's result, which is higher for a better state.

        Args:
            result: loss and metrics by name. What is missing, None or no number has the lowest rank.
        """
        return self.score(result), self._signed(result.get(LOSS), higher_is_better=False)

    def score(self, result: Mapping[str, Any]) -> float:
        """Return the value of an evaluation's result that is monitored, with the sign by which higher is better."""
        return self._signed(result.get(self.metric), self.higher_is_better)

    @staticmethod
    def _signed(value: float | None, higher_is_better: bool) -> float:
        if value is None or math.isnan(value):
            return -math.inf
        return value if higher_is_better else -value


# ---- trackers, chosen by log.tracker ---------------------------------------------------------------------------------

NONE = "none"  # value of log.tracker


@dataclass(frozen=True)
class TrackerEntry:
    """A service that a run's records can be sent to.

    Attributes:
        open: (name of the run, its folder, its configuration by dotted key) -> Tracker, or "module:function".
        package: the module that must be installed, where an extra of accumtrain installs it.
        extra: its name.
    """

    name: str
    open: Code
    package: str | None = None
    extra: str | None = None


TRACKERS: Registry[TrackerEntry] = Registry("log.tracker")
TRACKERS.add(
    TrackerEntry("mlflow", "accumtrain.train.tell.trackers:MlflowTracker", "mlflow", "mlflow"),
    TrackerEntry("wandb", "accumtrain.train.tell.trackers:WandbTracker", "wandb", "wandb"),
)
