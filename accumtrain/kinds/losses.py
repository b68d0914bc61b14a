"""The losses: what each example contributes to the sum that is minimised."""

from __future__ import annotations

from dataclasses import dataclass

from accumtrain.kinds.table import Choice, Kind, Table


@dataclass(kw_only=True)
class LossConfig(Choice):
    """Base class of the keys of a loss. It has no keys of its own."""


@dataclass(kw_only=True)
class CrossEntropyConfig(LossConfig):
    """-log softmax(logits)[label]."""

    kind: str = "cross_entropy"


LOSSES: Table[Kind[LossConfig]] = Table("loss.kind")
LOSSES.add(Kind(CrossEntropyConfig, "accumtrain.engine.loss:build_cross_entropy"))
