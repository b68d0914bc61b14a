"""The measure that decides which state is the best, the states of a run, and the trackers: `BestBy`, `TRACKERS`."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from accumtrain.errors import ConfigError
from accumtrain.fields import suggest_names
from accumtrain.registry import Registry
from accumtrain.tasks.config import LOSS, METRICS, TASKS, Code, check_metric, chosen_metrics

BEST_STATE, LAST_STATE = STATES = ("best", "last")  # of a run


@dataclass(frozen=True)
class BestBy:
    """The measure that decides which state is the best: a metric, then the loss; or the loss alone."""

    metric: str
    higher_is_better: bool

    @classmethod
    def of(cls, config: Any, measured: Collection[str] | None = None) -> BestBy:
        """Return what a run monitors. Without a choice it is the first metric, or else the loss.

        Args:
            config: that of the run.
            measured: names of the metrics that are measured; None is those that its keys tell.
        """
        chosen, best = config.eval.metrics, TASKS[config.task.kind].best
        if measured is None:
            measured = [metric.name for metric in chosen_metrics(config)]
        first = [best] if chosen is None and best in measured else chosen
        name = config.train.monitor or (first[0] if first else LOSS)
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


def check_monitor(config: Any) -> None:
    """Raise ConfigError if train.monitor is no metric, or one that is not measured."""
    monitor, measured = config.train.monitor, [metric.name for metric in chosen_metrics(config)]
    if monitor is None or monitor == LOSS or (monitor in METRICS.names and monitor in measured):
        return
    if monitor in METRICS.names:
        check_metric(config, "train.monitor", METRICS[monitor])
        raise ConfigError(
            f"train.monitor={monitor}: is not measured; add it: eval.metrics=[{','.join([*measured, monitor])}]"
        )
    raise ConfigError(f"train.monitor={monitor}: no such metric; {suggest_names(monitor, [LOSS, *METRICS.names])}")


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
