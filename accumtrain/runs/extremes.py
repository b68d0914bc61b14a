"""Which points of a long curve to draw: few enough for a page, and none of its peaks lost."""

from __future__ import annotations

from collections.abc import Sequence


def extremes(values: Sequence[float], most: int) -> list[int]:
    """Indices, in order, of at most `most` values: first, last, and smallest and largest of each of equal stretches.

    Args:
        most: at least 4. Of so many values or fewer, all are taken.
    """
    if len(values) <= most:
        return list(range(len(values)))
    stretches = (most - 2) // 2
    taken = {0, len(values) - 1}
    for number in range(stretches):
        stretch = range(len(values) * number // stretches, len(values) * (number + 1) // stretches)
        taken |= {min(stretch, key=values.__getitem__), max(stretch, key=values.__getitem__)}
    return sorted(taken)
