"""The result of a check of job=verify: the bound that it must meet and what it measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")

# Bound on the relative difference of gradients that form the same sums in another order: with another batch size, or in
# another compiled graph. A difference in the last bit can move an activation across a ReLU's kink, and bfloat16 keeps
# only 8 bits of every product.
ROUNDING = {"float32": 1e-3, "bfloat16": 5e-2, "float64": 1e-12}


@dataclass(frozen=True)
class CheckResult:
    """One check.

    Attributes:
        name: the two values that are compared.
        measured: the difference, in the unit that the name gives.
        bound: the largest difference that passes. None where no bound can hold, and `note` says why.
        note: one sentence for the reader, or empty.
    """

    name: str
    measured: float
    bound: float | None
    note: str = ""

    @property
    def passed(self) -> bool | None:
        """Return whether the check passed, or None without a bound. NaN does not pass."""
        return None if self.bound is None else bool(self.measured <= self.bound)


def max_or_nan(values: Iterable[T], measured: Callable[[Any], Any] = float) -> T:
    """Return the value with the largest `measured`. NaN is larger than any number here, where `max` may drop it."""

    def order(value: T) -> tuple[bool, Any]:
        number = measured(value)
        return math.isnan(number), number

    return max(values, key=order)


def relative_difference(actual: Iterable[np.ndarray], expected: Iterable[np.ndarray]) -> float:
    """Return |actual - expected| / |expected|: Euclidean norms over all values, in float64."""
    difference = size = 0.0
    for a, e in zip(actual, expected, strict=True):
        difference += float(np.sum(np.square(np.asarray(a, np.float64) - e)))
        size += float(np.sum(np.square(np.asarray(e, np.float64))))
    return ratio(float(np.sqrt(difference)), float(np.sqrt(size)))


def ratio(difference: float, size: float) -> float:
    """Return difference / size: 0 if both are 0, infinity if only `size` is 0. NaN stays NaN."""
    return difference / size if size else (0.0 if difference == 0 else difference * math.inf)
