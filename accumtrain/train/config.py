"""Configs of losses, and the entries of losses, metrics and trackers: `LOSSES`, `METRICS`, `TRACKERS`."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from accumtrain.errors import ConfigError
from accumtrain.fields import FRACTION, Word, format_value, suggest_names
from accumtrain.registry import ComponentConfig, Entry, Registry

Code = str | Callable[..., Any]  # a function or class, or "module:attribute"

# ---- losses ----------------------------------------------------------------------------------------------------------

BALANCED = "balanced"
WEIGHTS = "must be balanced, a mapping from class names to weights, or for classes without names a list of weights"
SHOWN = 12  # classes in a message


@dataclass(kw_only=True)
class LossConfig(ComponentConfig):
    """Base class of the keys of a loss. It has no keys of its own."""

    def for_training(self, class_names: Sequence[str], class_counts: Callable[[], list[int]]) -> LossConfig:
        """Return the loss that is minimised.

        Args:
            class_names: the names of the classes in their order; empty if they are numbered.
            class_counts: returns the number of training examples of each class.
        """
        return self

    @property
    def for_evaluation(self) -> LossConfig:
        """The loss that evaluations measure."""
        return self

    @property
    def factors(self) -> list[float]:
        """The factors on the losses of the classes, once `for_training` knows them; empty without any."""
        return []


@dataclass(kw_only=True)
class CrossEntropyConfig(LossConfig):
    """-log softmax(logits)[label]. Evaluations measure it without smoothing and weights.

    `label_smoothing`: share of the target that is spread evenly over all classes.
    `class_weights`: factor on the loss of the examples of a class, by its name; 1 for those that are not named. A list
    is for classes without names, in their order. balanced gives all classes the same sum, so
    examples / (classes * examples of the class).
    """

    kind: str = "cross_entropy"
    label_smoothing: Annotated[float, FRACTION] = 0.0
    class_weights: Annotated[dict[str, float] | list[float] | str | None, Word(BALANCED, WEIGHTS)] = None

    def check(self) -> None:
        if self.class_weights is None or isinstance(self.class_weights, str):
            return
        named = isinstance(self.class_weights, dict)  # then those of other classes are 1
        weights = list(self.class_weights.values()) if isinstance(self.class_weights, dict) else self.class_weights
        if not weights or min(weights) < 0 or not (named or any(weights)):
            raise ConfigError(
                f"loss.class_weights={format_value(self.class_weights)}: must hold weights of at least 0, and one "
                f"above 0; for example {_quoted({'cat': 1.0, 'dog': 5.0})}"
            )

    def for_training(self, class_names: Sequence[str], class_counts: Callable[[], list[int]]) -> CrossEntropyConfig:
        """Raise ConfigError if weights are of other classes."""
        if self.class_weights is None:
            return self
        if isinstance(self.class_weights, dict):
            names = class_names or [str(number) for number in range(len(class_counts()))]
            return replace(self, class_weights=_in_order(self.class_weights, names))
        counts = class_counts()
        if isinstance(self.class_weights, str):  # balanced
            found = sum(count > 0 for count in counts)
            return replace(self, class_weights=[sum(counts) / (found * count) if count else 0.0 for count in counts])
        if class_names:
            named = dict(zip(class_names[:SHOWN], self.class_weights, strict=False))
            raise ConfigError(
                f"loss.class_weights={format_value(self.class_weights)}: a list has the order of the classes, here "
                f"{', '.join(class_names[:SHOWN])}{', ...' if len(class_names) > SHOWN else ''}; name the classes, as "
                f"in {_quoted(named)}, others have the weight 1"
            )
        if len(self.class_weights) != len(counts):
            raise ConfigError(
                f"loss.class_weights={format_value(self.class_weights)}: holds {len(self.class_weights)} weights, the "
                f"data has {len(counts)} classes; give one for each, in their order, or loss.class_weights=balanced"
            )
        return self

    @property
    def for_evaluation(self) -> CrossEntropyConfig:
        return replace(self, label_smoothing=0.0, class_weights=None)

    @property
    def factors(self) -> list[float]:
        return self.class_weights if isinstance(self.class_weights, list) else []


def _in_order(weights: Mapping[str, float], names: Sequence[str]) -> list[float]:
    """Return the weights of the classes `names`, 1 for those without."""
    for name, weight in weights.items():
        if name not in names:
            raise ConfigError(
                f"loss.class_weights.{name}={format_value(weight)}: no such class; {suggest_names(name, names)}"
            )
    factors = [weights.get(name, 1.0) for name in names]
    if not any(factors):
        raise ConfigError(
            f"loss.class_weights={format_value(weights)}: no class is left to learn; give one a weight above 0"
        )
    return factors


def _quoted(weights: Mapping[str, float]) -> str:
    """Return the key as a command has it: a shell makes several words of braces and commas."""
    return f"'loss.class_weights={format_value(weights)}'"


@dataclass(frozen=True)
class LossEntry(Entry[LossConfig]):
    """A loss.

    Attributes:
        metrics: what is measured beside the loss where eval.metrics is null, by name: functions like the loss, or
            "module:function". `accuracy` decides which state is the best; without it the loss does.
        further_metrics: a function of the configuration that returns more such metrics by name, where only the model
            tells which there are; or None.
        split_metrics: a function of the configuration that returns an `accumtrain.engine.losses.SplitMetrics`: what is
            measured on a whole split only, as it is no mean over examples; or None.
        whole_batch: the loss is a function of the labels [B] and the outputs [B, ...] of an update to one number.
    """

    metrics: Mapping[str, Code] = field(default_factory=lambda: {"accuracy": "accumtrain.engine.losses:accuracy"})
    further_metrics: Code | None = None
    split_metrics: Code | None = None
    whole_batch: bool = False


LOSSES: Registry[LossEntry] = Registry("loss.kind")
LOSSES.add(LossEntry(CrossEntropyConfig, "accumtrain.train.build:build_cross_entropy"))


def tells_classes(loss: str) -> bool:
    """Return whether a model trained with this loss tells classes apart."""
    return "accuracy" in LOSSES[loss].metrics


def check_tells_classes(loss: str, job: str) -> None:
    """Raise ConfigError if a model trained with this loss does not tell classes apart."""
    if not tells_classes(loss):
        raise ConfigError(f"job={job}: takes a model that tells classes apart; loss={loss} has no accuracy")


# ---- metrics, chosen by eval.metrics ---------------------------------------------------------------------------------

ACCURACY = "accuracy"
LOSS = "loss"
BEST_STATE, LAST_STATE = STATES = ("best", "last")  # of a run


@dataclass(frozen=True)
class MetricEntry:
    """A metric.

    Attributes:
        function: (labels [N], logits [N, classes]) -> values [N] in the dtype of the logits, or "module:function".
        higher_is_better: the direction in which it decides which state is the best.
    """

    name: str
    function: Code
    higher_is_better: bool = True


METRICS: Registry[MetricEntry] = Registry("eval.metrics")
METRICS.add(
    MetricEntry(ACCURACY, "accumtrain.engine.losses:accuracy"), MetricEntry("top5", "accumtrain.engine.losses:top5")
)


@dataclass(frozen=True)
class BestBy:
    """The measure that decides which state is the best: a metric, then the loss; or the loss alone."""

    metric: str
    higher_is_better: bool

    @classmethod
    def of(cls, monitor: str | None, chosen: Sequence[str] | None, measured: Collection[str]) -> BestBy:
        """Return what is monitored. Without a choice it is the first metric, or else the loss.

        Args:
            monitor: train.monitor.
            chosen: eval.metrics.
            measured: names of the metrics that are measured where eval.metrics is null. Of these the accuracy counts.
        """
        first = [ACCURACY] if chosen is None and ACCURACY in measured else chosen
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


def check_monitor(monitor: str | None, chosen: Sequence[str] | None, loss: str) -> None:
    """Raise ConfigError if train.monitor is no metric, or one that is not measured.

    Args:
        chosen: eval.metrics.
        loss: loss.kind.
    """
    measured = [*(LOSSES[loss].metrics if chosen is None else chosen)]
    if monitor is None or monitor == LOSS or (monitor in METRICS.names and monitor in measured):
        return
    if monitor in METRICS.names:
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
    TrackerEntry("mlflow", "accumtrain.train.trackers:MlflowTracker", "mlflow", "mlflow"),
    TrackerEntry("wandb", "accumtrain.train.trackers:WandbTracker", "wandb", "wandb"),
)
