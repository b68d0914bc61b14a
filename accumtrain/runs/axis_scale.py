"""The scale of a picture's axis, chosen so that there are always numbers at it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

STEPS = {2: (1,), 10: (1, 2, 5)}  # multiples of the powers of a base that get a number
MANY_POWERS = 3  # in a range of so many, powers alone get a number


def scale_axis(axes: Any, letter: str, values: Sequence[float], base: int) -> None:
    """Makes the axis `letter` (x or y) of matplotlib's `axes` logarithmic if `values` span a power of `base`.

    Otherwise, and with values of zero or less, it stays linear.
    """
    if not values or min(values) <= 0 or max(values) / min(values) < base:
        return
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    getattr(axes, f"set_{letter}scale")("log", base=base)
    axis = getattr(axes, f"{letter}axis")
    powers = math.log(max(values), base) - math.log(min(values), base)
    axis.set_major_locator(LogLocator(base=base, subs=STEPS[base] if powers < MANY_POWERS else (1,)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())
