"""The search for the largest micro-batch that fits, with few trials, and the sizes among which it looks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence

from accumtrain.config.arithmetic import divisors

Point = tuple[int, float]  # micro-batch, bytes that it takes


def largest_that_fits(
    sizes: Sequence[int], attempt: Callable[[int], float | None], budget: Callable[[], float]
) -> int | None:
    """Return the largest size that fits while the next larger one does not. Return None if the first does not fit.

    The search starts with the first size and about twice as much. It goes on where a straight line through the last
    two fitting trials meets the budget. If a trial at or below that size has failed, it bisects.

    Args:
        sizes: micro-batches to choose from, increasing.
        attempt: tries a micro-batch. Returns the bytes that it takes, or None if it does not fit.
        budget: bytes that a micro-batch may take. It makes the guesses, and `attempt` decides.
    """
    low, high = -1, len(sizes)  # indices of the largest size that fits and of the smallest that does not
    fitting: list[Point] = []
    index = 0
    while high - low > 1:
        used = attempt(sizes[index])
        if used is None:
            high = index
        else:
            low = index
            fitting.append((sizes[index], used))
        if not fitting:
            return None
        index = bisect_right(sizes, _target(fitting, budget)) - 1
        if index >= high and high < len(sizes):  # the line is wrong: that size did not fit
            index = (low + high) // 2
        index = min(max(index, low + 1), high - 1)
    return sizes[low]


def micro_batches(examples: int, least: int) -> list[int]:
    """Return the divisors of `examples` from `least` on, or all of them if none is as large."""
    sizes = divisors(examples)
    return [size for size in sizes if size >= least] or sizes


def doubled(sizes: Sequence[int]) -> list[int]:
    """Return the first of `sizes`, then again and again the next that is at least twice the one before."""
    found = [sizes[0]]
    for size in sizes:
        if size >= 2 * found[-1]:
            found.append(size)
    return found


def line_through(before: Point, last: Point) -> tuple[float, float]:
    """Return a line through two trials: bytes at a micro-batch of 0, and bytes per example."""
    slope = (last[1] - before[1]) / (last[0] - before[0])
    return last[1] - slope * last[0], slope


def on_lines(known: Mapping[int, float], x: int) -> float:
    """Return the value at x, on straight lines through at least two known ones."""
    ends = sorted(known)
    upper = min(max(bisect_left(ends, x), 1), len(ends) - 1)
    base, slope = line_through(*((end, known[end]) for end in ends[upper - 1 : upper + 1]))
    return base + slope * x


def _target(fitting: Sequence[Point], budget: Callable[[], float]) -> int:
    """Return the micro-batch to try next, given the trials that fit."""
    last = fitting[-1][0]
    if len(fitting) < 2:
        return 2 * last
    base, slope = line_through(*fitting[-2:])
    # Without a rise the memory of the examples is still hidden by what the allocator takes in advance.
    return 8 * last if slope <= 0 else int((budget() - base) / slope)
