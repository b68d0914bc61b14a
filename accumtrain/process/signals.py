"""Signals that ask a job to stop. It ends at once where nothing can be lost, and by itself in `DeferredSignals`."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from types import FrameType, TracebackType
from typing import NoReturn

from accumtrain.console import escape_controls, fail, say
from accumtrain.errors import Preempted

# Ctrl-C, a scheduler, a terminal that closes, SLURM's --signal=USR1@60, Ctrl-\
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT)
TOGETHER = 0.05  # seconds in which several signals are one wish, as of a scheduler that sends SIGINT and SIGTERM
INTERRUPTED = 130  # exit code, as a shell reports Ctrl-C: stopped before there was a state to save
INTERRUPTED_MESSAGE = "interrupted before there was anything to save"
NOTICE = b"\nstopping: saving what is done (a second Ctrl-C or signal stops at once)\n"


def end_on_signals() -> None:
    """Make each signal end the process with the exit code of a run that can be continued.

    Signals that are ignored, as SIGHUP is under nohup, stay ignored.
    """
    for number in list_heeded_signals():
        signal.signal(number, _end)


def raise_on_signals() -> None:
    """Make each signal raise KeyboardInterrupt, as Ctrl-C does in Python."""
    for number in list_heeded_signals():
        signal.signal(number, signal.default_int_handler)


def ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def list_heeded_signals() -> list[signal.Signals]:
    """Return the signals that are not ignored, as SIGHUP is under nohup."""
    return [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


def _end(number: int, frame: FrameType | None) -> None:
    with suppress(OSError):  # the terminal is gone
        os.write(1, f"{nothing_saved(signal.Signals(number).name)}\n".encode())
    os._exit(Preempted.exit_code)  # at once, as an exception is not raised or is lost while C code imports


def nothing_saved(signal_name: str) -> str:
    """Return the message of a command that a signal has stopped before it had a state to save."""
    return f"stopped by {signal_name} when there was nothing to save; run the same command again"


def end_now(message: str, code: int) -> NoReturn:
    """Print `message` on stderr and end the process, from any thread. No context is left, no exit handler runs.

    It is for a process whose main thread may never come back.
    """
    with suppress(OSError):  # nobody reads it
        # not to sys.stderr, whose lock the main thread may hold
        os.write(2, f"\nerror: {escape_controls(message)}\n".encode())
    os._exit(code)


class StoppedBySignal(KeyboardInterrupt):
    """Raised by a signal.

    It is a subclass, because after a KeyboardInterrupt that has passed through code in C, Python ends its own process
    by SIGINT. That would lose the exit code.
    """


@contextmanager
def without_traceback() -> Iterator[None]:
    """End the program without a traceback if a stop by a signal leaves this context and nobody catches it.

    Python gives exceptions that the program does not catch to `sys.excepthook`. The message and the exit code are those
    of the command line.
    """
    try:
        yield
    except (Preempted, StoppedBySignal):
        if not isinstance(sys.excepthook, _StopHook):
            sys.excepthook = _StopHook(sys.excepthook)
        raise


class _StopHook:
    """A hook for uncaught exceptions that ends the process after a stop. All else is for the hook before."""

    def __init__(self, before: Callable[[type[BaseException], BaseException, TracebackType | None], object]):
        self._before = before

    def __call__(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if isinstance(error, Preempted):
            say(str(error))
            raise SystemExit(error.exit_code)
        if isinstance(error, StoppedBySignal):
            fail(INTERRUPTED_MESSAGE)
            raise SystemExit(INTERRUPTED)
        self._before(kind, error, traceback)


class JobSignals:
    """Context of a job. The first signal raises StoppedBySignal, or in `DeferredSignals` only sets `received`.

    A second signal ends the process, but for SIGHUP, which a closing terminal sends twice: it is ignored then. Signals
    that come together count as one. Those that were ignored before stay ignored, as SIGHUP is under nohup.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self.deferrals = 0  # contexts that are open

    def __enter__(self) -> JobSignals:
        in_main = threading.current_thread() is threading.main_thread()  # Python gives signals to no other thread
        self._outer = _signals_of_job.set(self)
        self._previous = {
            number: signal.signal(number, self._stop) for number in (list_heeded_signals() if in_main else [])
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            if not number == self.received == signal.SIGHUP:  # SIGHUP may still come again
                signal.signal(number, handler)
        _signals_of_job.reset(self._outer)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:  # by a signal that came together with this one
            return
        self.received = signal.Signals(number)
        time.sleep(TOGETHER)
        signal.raise_signal(number)  # makes Python handle now the signals that have come with it
        for other in self._previous:
            signal.signal(other, signal.SIG_IGN if other == signal.SIGHUP else signal.SIG_DFL)
        if self.deferrals == 0:
            raise StoppedBySignal(self.received.name)
        with suppress(OSError):  # SIGHUP: the terminal is gone
            os.write(2, NOTICE)  # not sys.stderr: a signal may come in the middle of a print


_signals_of_job: ContextVar[JobSignals] = ContextVar("signals_of_job")


class DeferredSignals:
    """Context, in a job, that a signal does not break off. The job looks at `requested` and stops by itself."""

    def __init__(self) -> None:
        self._signals = _signals_of_job.get()

    @property
    def requested(self) -> bool:
        """Return whether a signal has asked this job to stop, here or before."""
        return self._signals.received is not None

    def __enter__(self) -> DeferredSignals:
        self._signals.deferrals += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._signals.deferrals -= 1
