"""The folder of a running sweep: it holds the outcome of each job, and names the process that runs the sweep.

Jobs may run in other processes and on other machines, so their outcomes are exchanged as files in run.dir. Signals end
a sweep whose jobs run in other processes: these save their state, then the table is shown.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from multiprocessing import resource_tracker
from pathlib import Path
from types import FrameType

from accumtrain.cli.sweep.table import JobOutcome
from accumtrain.console import say
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.process.signals import TOGETHER, list_heeded_signals
from accumtrain.runs.files import write_json

VARIABLE = "ACCUMTRAIN_SWEEP_DIR"  # environment variable, read by conf/config.yaml: Hydra's own files go there too
PREFIX = ".sweep-"
OWNER = "owner"  # host and process of the command that started the sweep
TERMINAL_SIGNALS = {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP}  # sent to all processes of a command
NOTICE = "\nstopping: running jobs save their state (a second Ctrl-C or signal stops at once)\n"
SECONDS = 0.2  # between two checks


@contextmanager
def open_sweep_folder(run_dir: Path) -> Iterator[Path]:
    """Make a new folder in `run_dir` and yield it. It is removed afterwards, except for the logs of a launcher.

    Those of sweeps that were killed are removed first.

    Raises:
        ConfigError: the folder can't be made.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        _remove_left(run_dir)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=run_dir))
        try:
            (folder / OWNER).write_text(f"{socket.gethostname()} {os.getpid()}", encoding="utf-8")
        except OSError:  # the disk is full
            shutil.rmtree(folder)
            raise
    except OSError as error:
        raise ConfigError(f"run.dir={run_dir} can't be used: {error.strerror}; choose another one") from error
    os.environ[VARIABLE] = str(folder)
    try:
        yield folder
    finally:
        _close(folder)


def _remove_left(run_dir: Path) -> None:
    """Remove the folders of sweeps that were killed. Those of other users, and half-written ones, stay."""
    for left in run_dir.glob(f"{PREFIX}*"):
        with suppress(OSError, ValueError):
            if (left / OWNER).exists() and not is_running(left):
                _close(left)


def is_running(folder: Path) -> bool:
    """Return whether jobs may start and continue. They may until `end_sweep`, or the end of the sweep's command."""
    try:
        host, process = (folder / OWNER).read_text(encoding="utf-8").split()
    except FileNotFoundError:
        return False
    import psutil  # takes 10 ms, which --help has no use for

    return host != socket.gethostname() or psutil.pid_exists(int(process))


def end_sweep(folder: Path) -> None:
    """Make running jobs stop with their state saved, and keep other jobs from starting."""
    (folder / OWNER).unlink(missing_ok=True)


def write_outcome(folder: Path, number: int, outcome: JobOutcome) -> None:
    """Write the outcome of job `number`, for the command that started the sweep.

    That command may end, and remove the folder, as soon as it has seen the outcome. Then nobody reads it any more.

    Raises:
        CheckpointError: it can't be written, and the sweep goes on.
    """
    try:
        write_json(_file(folder, number), asdict(outcome))
    except CheckpointError as error:
        if is_running(folder) or not isinstance(error.__cause__, FileNotFoundError):
            raise


def read_outcome(folder: Path, number: int) -> JobOutcome | None:
    """Return the outcome that job `number` has written; None if there is none."""
    file = _file(folder, number)
    return _read(file) if file.exists() else None


def read_outcomes(folder: Path) -> list[JobOutcome]:
    """Return the outcomes written so far, in the order of the jobs."""
    return [_read(file) for file in sorted(folder.glob("[0-9]*.json"))]


def has_failure(folder: Path) -> bool:
    """Return whether a job of the sweep has failed so far."""
    return any(outcome.has_failed for outcome in read_outcomes(folder))


def _read(file: Path) -> JobOutcome:
    return JobOutcome(**json.loads(file.read_text(encoding="utf-8")))


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.json"


def _close(folder: Path) -> None:
    """Remove the folder, but for folders in it. Jobs that still run may write to it meanwhile."""
    if any(entry.is_dir() for entry in folder.iterdir()):
        for file in folder.iterdir():
            if file.is_file():
                file.unlink(missing_ok=True)
        say(f"the files of the launcher, with the logs of the jobs, are kept in {folder}")
    else:
        shutil.rmtree(folder.rename(folder.with_name(f"{folder.name}.ended")))  # no job finds it under this name


# ---- signals ----


@contextmanager
def stop_on_signals(folder: Path) -> Iterator[None]:
    """Make a signal in this context stop the jobs, wait for them and then raise KeyboardInterrupt.

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
                    pass  # the signal came together with the first
                asked.clear()
                _stop(folder, held - {signal.SIGHUP}, asked, over)
                saved.set()
                while not raised.is_set() and not over.is_set():  # a signal just before a wait does not end the wait
                    signal.pthread_kill(main, signal.SIGTERM)
                    raised.wait(SECONDS)
                return

    main = threading.get_ident()
    held = TERMINAL_SIGNALS.intersection(list_heeded_signals())
    # SIGTERM always has the handler, as the thread sends it
    previous = {number: signal.signal(number, on_signal) for number in {*list_heeded_signals(), signal.SIGTERM}}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    resource_tracker.ensure_running()  # else joblib starts it later, which up to Python 3.13 unblocks SIGINT
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
    """End the sweep. Return when all jobs have ended, at a second signal, or when the launcher has given up.

    Args:
        held: the signals that are blocked.
        asked_again: is set by a second signal that is not blocked.
        over: is set when the launcher has returned.
    """
    sys.stderr.write(NOTICE)
    sys.stderr.flush()
    end_sweep(folder)
    while not over.is_set() and any(outcome.ended_with is None for outcome in read_outcomes(folder)):
        if signal.sigtimedwait(held, SECONDS) is not None or asked_again.is_set():
            return
