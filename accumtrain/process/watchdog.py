"""The end of a process that makes no progress, and the time that is left of run.walltime."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import TextIO

from accumtrain.console import escape_controls
from accumtrain.errors import Preempted
from accumtrain.process.environment import process_seconds
from accumtrain.process.signals import end_now

STAGES = 20  # the number of stages that are remembered
TICK = 1.0  # seconds between two looks
LAST_WORK = 60.0  # seconds that writing the file may take: a disk may be what hangs


class Watchdog:
    """Context in which the process ends with code 75 if it does not `beat` for `timeout_seconds`.

    Before that a file hang-<time>-<process>.txt in `folder` gets the last stages and the stacks of all threads. Time in
    which the process as a whole stands still (Ctrl-Z, a laptop's sleep) does not count. A call into C that keeps
    Python's interpreter lock (GIL) keeps this thread from running too, and is not noticed.

    Args:
        timeout_seconds: 0 turns it off.
        folder: the run's.
    """

    def __init__(self, timeout_seconds: float, folder: Path):
        self._timeout, self._folder = timeout_seconds, folder
        self._stages: deque[tuple[float, str]] = deque(maxlen=STAGES)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self.beat("start")
        if self._timeout:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timeout:
            self._over.set()
            self._thread.join()

    def beat(self, stage: str) -> None:
        """Note that the process makes progress, and the stage that begins."""
        self._stages.append((time.time(), stage))

    def _watch(self) -> None:
        tick = min(TICK, self._timeout / 4)
        newest, silent = self._stages[-1], 0.0
        while silent < self._timeout:
            if self._over.wait(tick):
                return
            silent += tick
            if self._stages[-1] is not newest:
                newest, silent = self._stages[-1], 0.0
        self._end(newest[1])

    def _end(self, stage: str) -> None:
        file = self._folder / f"hang-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
        what = f"no progress for {self._timeout:g} s (run.hang_timeout) in: {stage}"
        writing = threading.Thread(target=self._report, args=(file, what), name="last work", daemon=True)
        writing.start()
        writing.join(LAST_WORK)
        end_now(
            f"{what}; {file} has the stack of each thread. The last checkpoint is intact: run the same command again "
            "to continue from it",
            Preempted.exit_code,
        )

    def _report(self, file: Path, what: str) -> None:
        try:
            with file.open("x", encoding="utf-8") as target:
                self._write(target, what)
        except OSError as error:  # the disk may be what hangs
            sys.stderr.write(f"{escape_controls(str(file))} can't be written: {error.strerror}\n")
            self._write(sys.stderr, what)

    def _write(self, target: TextIO, what: str) -> None:
        stages = [f"  {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(at))}  {stage}" for at, stage in self._stages]
        target.write("\n".join([what, "", "began at             stage", *stages, "", ""]))
        target.flush()
        faulthandler.dump_traceback(target, all_threads=True)


class Deadline:
    """The time that a scheduler leaves to this process. It counts from the start of the process.

    Args:
        seconds: the age of the process at which it will be killed; None: never.
    """

    def __init__(self, seconds: float | None):
        self._end = None if seconds is None else time.monotonic() + seconds - process_seconds()

    def due(self, reserve_seconds: float) -> bool:
        """Return whether no more than `reserve_seconds` are left."""
        return self._end is not None and time.monotonic() + reserve_seconds >= self._end
