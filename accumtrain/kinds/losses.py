"""The losses: what each example contributes to the sum that is minimised."""

from __future__ import annotations

from dataclasses import dataclass

from accumtrain.kinds.table import Choice, Kind, Table


@dataclass(kw_only=True)
class LossConfig(Choice):
    """Keys of every loss: none."""


@dataclass(kw_only=True)
class CrossEntropyConfig(LossConfig):
    """Of the softmax of the logits and the label."""

    kind: str = "cross_entropy"


LOSSES: Table[Kind[LossConfig]] = Table("loss.kind")
LOSSES.add(Kind(CrossEntropyConfig, "accumtrain.engine.loss:build_cross_entropy"))
