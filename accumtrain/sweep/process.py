"""A job of a sweep in a process of its own: its memory, its devices and its end touch no other job.

The one that starts it only waits, wherever a launcher has put it, and hands on what the job prints.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import current_process
from typing import IO, TextIO

from accumtrain.config import Config, from_mapping, to_mapping
from accumtrain.console import fail
from accumtrain.sweep.outcome import INTERRUPTED, KILLED

# The child finds the modules where this process has found them.
PROGRAM = "import sys; sys.path[:] = {path!r}; from accumtrain.cli import job_main; job_main()"
SECONDS = 0.5  # between two looks whether the job is still wanted
CORES = "OMP_NUM_THREADS"  # that joblib gives to each of its processes
THREADS = "TF_NUM_INTRAOP_THREADS"  # of TensorFlow, which does not look at the former and takes all cores


def run(config: Config, label: str, wanted: Callable[[], bool]) -> int:
    """Runs a job in a child. Once it is not wanted any more the child stops with its state saved, as by SIGTERM.

    Args:
        label: precedes each line that the job prints.

    Returns:
        Its exit code; for a child that a signal has killed, 128 and the number of the signal.
    """
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(path=sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(),
        text=True,
        start_new_session=True,  # Ctrl-C is the command's matter
    )
    assert child.stdin is not None
    copies = [
        threading.Thread(target=_copy, args=(source, target, label))
        for source, target in ((child.stdout, sys.stdout), (child.stderr, sys.stderr))
    ]
    for copy in copies:
        copy.start()
    try:
        with suppress(BrokenPipeError):  # it has ended; its exit code says why
            os.write(child.stdin.fileno(), json.dumps(to_mapping(config)).encode() + b"\n")
        _wait(child, wanted)
    finally:
        child.stdin.close()
        child.wait()
        for copy in copies:
            copy.join()
    return _exit_code(child.returncode, label)


def _environment() -> dict[str, str]:
    """Jobs that share this machine share its cores: with more threads than cores all of them are slower."""
    beside_others = current_process().name.startswith("LokyProcess") and CORES in os.environ
    return ({THREADS: os.environ[CORES]} if beside_others else {}) | os.environ


def _wait(child: subprocess.Popen[str], wanted: Callable[[], bool]) -> None:
    """Returns when the child has ended, or is not wanted any more."""
    while wanted():
        try:
            child.wait(SECONDS)
            return
        except subprocess.TimeoutExpired:
            pass


def _copy(source: IO[str], target: TextIO, label: str) -> None:
    """Line by line, so that those of jobs side by side stay whole."""
    with source:
        for line in source:
            target.write(f"{label} | {line}" if line.strip() else line)
            target.flush()


def _exit_code(returned: int, label: str) -> int:
    if returned >= 0:
        return returned
    if returned == -signal.SIGTERM:  # before there was anything to save
        return INTERRUPTED
    fail(
        f"{label} was killed by {signal.Signals(-returned).name}; if that was the system, which does so when memory "
        "runs out: fewer jobs at a time, or a higher accum.steps"
    )
    return KILLED - returned


# --- in the child -----------------------------------------------------------------------------------------------


def receive() -> Config:
    """The configuration that `run` has sent. When it closes the pipe, or is gone, this process gets a SIGTERM."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # see stop.py
    config = from_mapping(json.loads(sys.stdin.readline()))
    threading.Thread(target=_end_with_the_pipe, daemon=True).start()
    return config


def _end_with_the_pipe() -> None:
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)
