"""Ctrl-C and SIGTERM ask a run to stop; it stops at the next point where nothing is lost."""

from __future__ import annotations

import os
import signal
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
NOTICE = b"\nstopping: the state of the last update is being saved (once more to stop at once)\n"


class Interrupt:
    """Context in which the first signal only sets `requested`; a second one acts as it would without us."""

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> Interrupt:
        self._previous = {number: signal.signal(number, self._request) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        os.write(2, NOTICE)  # a signal may come in the middle of a print
        signal.signal(number, self._previous[signal.Signals(number)])
