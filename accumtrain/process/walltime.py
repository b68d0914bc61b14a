"""The time that a scheduler leaves to this process."""

from __future__ import annotations

import time

from accumtrain.process.environment import process_seconds


class Walltime:
    """Counts from the start of the process, as a scheduler does.

    Args:
        seconds: after which the process will be killed; None: never.
    """

    def __init__(self, seconds: float | None):
        self._end = None if seconds is None else time.monotonic() + seconds - process_seconds()

    def due(self, reserve_seconds: float) -> bool:
        """Whether no more than `reserve_seconds` are left."""
        return self._end is not None and time.monotonic() + reserve_seconds >= self._end
