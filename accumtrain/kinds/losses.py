"""The losses: what each example contributes to the sum that is minimised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from accumtrain.errors import ConfigError
from accumtrain.kinds.table import Choice, Kind, Table
from accumtrain.kinds.values import FRACTION, Word, show

BALANCED = "balanced"


@dataclass(kw_only=True)
class LossConfig(Choice):
    """Base class of the keys of a loss. It has no keys of its own."""

    def for_training(self, class_counts: Callable[[], list[int]]) -> LossConfig:
        """The loss that is minimised. `class_counts` returns the number of training examples of each class."""
        return self

    @property
    def for_evaluation(self) -> LossConfig:
        """The loss that evaluations measure."""
        return self


@dataclass(kw_only=True)
class CrossEntropyConfig(LossConfig):
    """-log softmax(logits)[label]. Evaluations measure it without smoothing and weights.

    `label_smoothing`: share of the target that is spread evenly over all classes.
    `class_weights`: factor on the loss of the examples of each class, null for 1; balanced gives all classes the same
    sum, so examples / (classes * examples of the class).
    """

    kind: str = "cross_entropy"
    label_smoothing: Annotated[float, FRACTION] = 0.0
    class_weights: Annotated[
        list[float] | str | None, Word(BALANCED, "must be balanced, or a list with a weight for each class")
    ] = None

    def check(self) -> None:
        if not isinstance(self.class_weights, list):
            return
        if any(weight < 0 for weight in self.class_weights) or not any(self.class_weights):
            raise ConfigError(
                f"loss.class_weights={show(self.class_weights)}: must hold a weight of at least 0 for each class, and "
                "one above 0; for example [1,1,5]"
            )

    def for_training(self, class_counts: Callable[[], list[int]]) -> CrossEntropyConfig:
        """Raises ConfigError if there is not a weight for each class."""
        if self.class_weights is None:
            return self
        counts = class_counts()
        if self.class_weights == BALANCED:
            found = sum(count > 0 for count in counts)
            return replace(self, class_weights=[sum(counts) / (found * count) if count else 0.0 for count in counts])
        if len(self.class_weights) != len(counts):
            raise ConfigError(
                f"loss.class_weights={show(self.class_weights)}: holds {len(self.class_weights)} weights, the data has "
                f"{len(counts)} classes; give one for each, in their order, or loss.class_weights=balanced"
            )
        return self

    @property
    def for_evaluation(self) -> CrossEntropyConfig:
        return replace(self, label_smoothing=0.0, class_weights=None)


@dataclass(frozen=True)
class LossKind(Kind[LossConfig]):
    """A row of the losses.

    Attributes:
        metrics: what is measured beside the loss, by name: functions like the loss, or "module:function". `accuracy`
            decides which state is the best; without it the loss does.
        split_metrics: a function of the configuration that returns an `accumtrain.engine.loss.SplitMetrics`: what is
            measured on a whole split only, as it is no mean over examples; or None.
    """

    metrics: Mapping[str, str | Callable[..., Any]] = field(
        default_factory=lambda: {"accuracy": "accumtrain.engine.loss:accuracy"}
    )
    split_metrics: str | Callable[..., Any] | None = None


LOSSES: Table[LossKind] = Table("loss.kind")
LOSSES.add(LossKind(CrossEntropyConfig, "accumtrain.engine.loss:build_cross_entropy"))


def tells_classes(loss: str) -> bool:
    """Whether a model trained with this loss tells classes apart."""
    return "accuracy" in LOSSES[loss].metrics


def check_tells_classes(loss: str, job: str) -> None:
    """Raises ConfigError if a model trained with this loss does not tell classes apart."""
    if not tells_classes(loss):
        raise ConfigError(f"job={job}: takes a model that tells classes apart; loss={loss} has no accuracy")
