"""How often the examples of a class are taken for which: by class, and the pairs that are confused most."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class ClassResult:
    """Of one class.

    `accuracy`: share of its examples that are taken for it (recall); None without examples. `precision`: share of the
    examples taken for it that are of it; None if there are none.
    """

    name: str
    examples: int
    accuracy: float | None
    precision: float | None


@dataclass(frozen=True)
class Pair:
    """Two classes, by number: `count` examples of one, a `share` of all it has, are taken for the other."""

    true: int
    predicted: int
    count: int
    share: float


@dataclass(frozen=True)
class Confusion:
    """`counts[i][j]` examples of class i are taken for class j."""

    names: list[str]
    counts: list[list[int]]

    @cached_property
    def examples(self) -> list[int]:
        """The number of examples of each class."""
        return [sum(row) for row in self.counts]

    @property
    def classes(self) -> list[ClassResult]:
        """The classes, that of the lowest accuracy first; those without examples come last."""
        taken = [sum(column) for column in zip(*self.counts, strict=True)]
        results = [
            ClassResult(name, examples, _share(row[place], examples), _share(row[place], taken[place]))
            for place, (name, row, examples) in enumerate(zip(self.names, self.counts, self.examples, strict=True))
        ]
        return sorted(results, key=lambda each: (math.inf if each.accuracy is None else each.accuracy, -each.examples))

    def confused(self, most: int) -> list[Pair]:
        """The `most` pairs of different classes with the highest counts, highest first; of equal ones by the share."""
        wrong = (
            (count, count / self.examples[true], -true, -predicted)
            for true, row in enumerate(self.counts)
            for predicted, count in enumerate(row)
            if count and true != predicted
        )
        return [Pair(-true, -predicted, count, share) for count, share, true, predicted in heapq.nlargest(most, wrong)]


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
