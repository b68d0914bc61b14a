"""Signals end a sweep whose jobs run in other processes: these save their state, then the table is shown."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from types import FrameType

from accumtrain.process.interrupt import TOGETHER, heeded
from accumtrain.shell import sweep_folder

OF_A_TERMINAL = {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP}  # which it sends to all processes of a command
NOTICE = "\nstopping: the jobs that run save their state (once more to stop at once)\n"
SECONDS = 0.2  # between two checks


@contextmanager
def stoppable(folder: Path) -> Iterator[None]:
    """Within this context a signal stops the jobs, waits for them and then raises KeyboardInterrupt.

    Signals that come together count as one. A second one does not wait, but for SIGHUP, which a closing terminal sends
    twice. A terminal sends Ctrl-C to the launcher's processes too, and could end one that others depend on. So its
    signals are blocked here, which they inherit, and a thread receives them. Signals that are ignored stay ignored.
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
            if signal.sigtimedwait(held, SECONDS) is not None or asked.is_set():
                time.sleep(TOGETHER)
                while signal.sigtimedwait(held, 0) is not None:
                    pass  # it has come together with the first
                asked.clear()
                _stop(folder, held - {signal.SIGHUP}, asked, over)
                saved.set()
                while not raised.is_set() and not over.is_set():  # a signal just before a wait does not end the wait
                    signal.pthread_kill(main, signal.SIGTERM)
                    raised.wait(SECONDS)
                return

    main = threading.get_ident()
    held = OF_A_TERMINAL.intersection(heeded())
    # SIGTERM in any case: the thread sends it
    previous = {number: signal.signal(number, on_signal) for number in {*heeded(), signal.SIGTERM}}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    resource_tracker.ensure_running()  # joblib starts it, and up to Python 3.13 that unblocks SIGINT
    signal.pthread_sigmask(signal.SIG_BLOCK, held)
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


def _stop(folder: Path, held: set[signal.Signals], asked_again: threading.Event, over: threading.Event) -> None:
    """Returns when all jobs have ended, at a second signal, or when the launcher has given up.

    Args:
        held: the second signals that are blocked.
    """
    sys.stderr.write(NOTICE)
    sys.stderr.flush()
    sweep_folder.end(folder)
    while not over.is_set() and any(outcome.ended_with is None for outcome in sweep_folder.collect(folder)):
        if signal.sigtimedwait(held, SECONDS) is not None or asked_again.is_set():
            return
