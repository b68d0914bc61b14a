"""The losses: what each example contributes to the sum that is minimised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from accumtrain.errors import ConfigError
from accumtrain.kinds.table import Choice, Kind, Table


@dataclass(kw_only=True)
class LossConfig(Choice):
    """Base class of the keys of a loss. It has no keys of its own."""


@dataclass(kw_only=True)
class CrossEntropyConfig(LossConfig):
    """-log softmax(logits)[label]."""

    kind: str = "cross_entropy"


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


def check_tells_classes(loss: str, job: str) -> None:
    """Raises ConfigError if a model trained with this loss does not tell classes apart."""
    if "accuracy" not in LOSSES[loss].metrics:
        raise ConfigError(f"job={job}: takes a model that tells classes apart; loss={loss} has no accuracy")
