"""How much goes into one compiled call: enough that Python costs nothing, little enough to stay answerable."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

SECONDS_PER_CALL = 0.5
WORTH_TOGETHER = 10  # updates that fit into a call: with fewer, calling costs nothing beside them


class Pace:
    """Chooses the length of the next call from the duration of the one before. The first call takes one.

    Args:
        least: calls that could not take as many take one: for them the longer call is not worth compiling.
    """

    def __init__(self, least: int = 1) -> None:
        self._least, self._length = least, 1

    def next(self, remaining: int) -> int:
        return min(self._length, remaining)

    @contextmanager
    def timed(self, count: int) -> Iterator[None]:
        started = time.perf_counter()
        yield
        seconds = max(time.perf_counter() - started, 1e-6)
        fitting = int(SECONDS_PER_CALL * count / seconds)
        # at most doubling: the first calls also trace and compile
        self._length = max(1, min(2 * self._length, fitting)) if fitting >= self._least else 1
