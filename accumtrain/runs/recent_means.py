"""Loss and metrics over the last updates, which say more than those of one batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from accumtrain.engine.step import SUM


class RecentMeans:
    """Means over the examples of the last `updates` updates, or of all that were made here if these are fewer.

    Updates that were made in one call count together, so that up to a call more may be in it.

    Args:
        names: of the loss and the metrics.
    """

    def __init__(self, names: Sequence[str], updates: int):
        self._names, self._updates = names, updates
        self._calls: deque[tuple[int, dict[str, float]]] = deque()

    def add(self, count: int, update: Mapping[str, float]) -> None:
        """Adds `count` updates.

        Args:
            update: the scalars of the last of them, and with more than one the sums of all, as Step.updates returns it.
        """
        examples = {"examples": update.get(f"{SUM}examples", update["examples"])}
        sums = {name: update.get(f"{SUM}{name}", update[name] * update["examples"]) for name in self._names}
        self._calls.append((count, sums | examples))
        while sum(each for each, _ in self._calls) - self._calls[0][0] >= self._updates:
            self._calls.popleft()

    def read(self) -> dict[str, float]:
        """The means by name."""
        examples = sum(sums["examples"] for _, sums in self._calls)
        return {name: sum(sums[name] for _, sums in self._calls) / examples for name in self._names}
