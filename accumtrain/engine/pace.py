"""How many micro-steps or updates one compiled call makes: enough to hide Python's time, few enough to respond soon."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

SECONDS_PER_CALL = 0.5
WORTH_TOGETHER = 10  # smallest number of updates to make in one call; for fewer the time of the calls is negligible


class Pace:
    """Chooses the length of the next call from the duration of the last one. The first call has length 1.

    Args:
        least: if fewer than this fit into SECONDS_PER_CALL, the length is 1, as longer calls are not worth compiling.
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
        # at most doubled, as the first calls also trace and compile
        self._length = max(1, min(2 * self._length, fitting)) if fitting >= self._least else 1
