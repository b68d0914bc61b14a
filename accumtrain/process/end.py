"""The end of a process whose main thread may never come back."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NoReturn

from accumtrain.console import visible


def end_now(message: str, code: int) -> NoReturn:
    """Prints `message` on stderr and ends the process from any thread: no context is left, no exit handler runs."""
    with suppress(OSError):  # nobody reads it
        os.write(2, f"\nerror: {visible(message)}\n".encode())  # the main thread may hold the lock of sys.stderr
    os._exit(code)
