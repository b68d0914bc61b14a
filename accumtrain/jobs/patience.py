"""How long a run has not become better (train.patience)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from accumtrain.engine.checkpoint import ACCURACY


def evaluations_since_best(records: Sequence[Mapping[str, Any]]) -> int:
    """The number of evaluations after the best one.

    Args:
        records: of all evaluations, in order; a loss that is not finite is None.
    """
    losses = [math.inf if record["loss"] is None else record["loss"] for record in records]
    ranks = [(record.get(ACCURACY) or 0.0, -loss) for record, loss in zip(records, losses, strict=True)]
    return len(ranks) - 1 - ranks.index(max(ranks)) if ranks else 0
