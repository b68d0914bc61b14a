"""What accumulation asks of its arguments and of variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np


def is_count(value: Any) -> bool:
    """Whether a value, of NumPy or of Python, is a whole number of 1 or more."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 1)


def check_arguments(steps: Any, reduction: Any, at_end: Any, adaptive_clip: Any) -> None:
    """Raises ValueError unless the arguments are as `Accumulate` describes them."""
    if not is_count(steps):
        raise ValueError(f"steps={steps!r}: a window has a whole number of micro-batches, 1 or more")
    for name, value, choices in (("reduction", reduction, ("mean", "sum")), ("at_end", at_end, ("keep", "flush"))):
        if value not in choices:
            raise ValueError(f"{name}={value!r} is not one of {', '.join(choices)}")
    if not isinstance(adaptive_clip, int | float | np.number) or not 0.0 <= adaptive_clip < float("inf"):
        raise ValueError(f"adaptive_clip={adaptive_clip!r} is not a finite number of 0 or more")


def check_summable(variables: Sequence[keras.Variable]) -> None:
    """Raises ValueError if a variable takes its gradient as its new value, as those of float8 layers do."""
    for variable in variables:
        if getattr(variable, "overwrite_with_gradient", False):
            raise ValueError(f"{variable.path} is replaced by its gradient (float8), which can't be accumulated")


def check_places(places: Sequence[int], before: Sequence[int] | None = None) -> None:
    """Raises ValueError if no variable has a gradient, or others than in the micro-batches before."""
    if not places:
        raise ValueError("no variable has a gradient: the loss does not depend on the trainable variables")
    if before not in (None, places):
        raise ValueError("other variables have gradients than before: take an Accumulate for each group of them")
