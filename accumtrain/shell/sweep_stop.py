"""Ctrl-C and SIGTERM end a sweep whose jobs run in other processes: these save their state, then the table is shown."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from types import FrameType

from accumtrain.shell import sweep_folder

NOTICE = "\nstopping: the jobs that run save their state (once more to stop at once)\n"
SECONDS = 0.2  # between two checks


@contextmanager
def stoppable(folder: Path) -> Iterator[None]:
    """Within this context, Ctrl-C or SIGTERM stops the jobs, waits for them and then raises KeyboardInterrupt.

    A second signal does not wait. A terminal sends Ctrl-C to the launcher's processes too, and could end one that
    others depend on. So SIGINT is blocked here, which they inherit, and a thread receives it.
    """
    asked, saved, raised, over = (threading.Event() for _ in range(4))

    def on_signal(number: int, frame: FrameType | None) -> None:
        if not saved.is_set():
            asked.set()
        elif not raised.is_set() and not over.is_set():
            raised.set()
            raise KeyboardInterrupt

    def watch() -> None:
        while not over.is_set():
            if signal.sigtimedwait({signal.SIGINT}, SECONDS) is not None or asked.is_set():
                asked.clear()
                _stop(folder, asked, over)
                saved.set()
                while not raised.is_set() and not over.is_set():  # a signal just before a wait does not end the wait
                    signal.pthread_kill(main, signal.SIGTERM)
                    raised.wait(SECONDS)
                return

    main = threading.get_ident()
    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    resource_tracker.ensure_running()  # joblib starts it, and up to Python 3.13 that unblocks SIGINT
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in previous.items():
            signal.signal(number, handler)
    if saved.is_set():  # the launcher has returned before the signal reached it
        raise KeyboardInterrupt


def _stop(folder: Path, asked_again: threading.Event, over: threading.Event) -> None:
    """Returns when all jobs have ended, at a second signal, or when the launcher has given up."""
    sys.stderr.write(NOTICE)
    sys.stderr.flush()
    sweep_folder.end(folder)
    while not over.is_set() and any(outcome.ended_with is None for outcome in sweep_folder.collect(folder)):
        if signal.sigtimedwait({signal.SIGINT}, SECONDS) is not None or asked_again.is_set():
            return
