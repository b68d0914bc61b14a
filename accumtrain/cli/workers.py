"""Several workers on this machine, to try out device=multiworker: accumtrain --workers 2 <overrides>."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import FrameType

from accumtrain.cli.sweep.table import KILLED
from accumtrain.errors import ConfigError, Preempted
from accumtrain.process.program import WORKERS, own_program
from accumtrain.process.signals import list_heeded_signals


def run_workers(arguments: Sequence[str]) -> int:
    """Run workers, hand each signal that stops a job on to them, and wait.

    Returns:
        The first exit code of a worker that failed by itself; else 75 if one was stopped, else 0. One that was ended by
        a signal before it heeded signals was stopped.

    Args:
        arguments: the number of workers, then overrides for all of them.

    Raises:
        ConfigError: the first argument is not a number of workers, or so many can't be started.
    """
    count, *overrides = arguments or ["nothing"]
    if not count.isdecimal() or int(count) < 1:
        raise ConfigError(
            f"{WORKERS} {count}: must be followed by the number of workers; for example {WORKERS} 2 batch_size=64"
        )
    early: list[int] = []  # signals that came before all workers were there
    handed_on: list[int] = []
    _handle(lambda number, frame: early.append(number))
    try:
        workers = start_workers(int(count), overrides, apart=True)
    except OSError as error:
        raise ConfigError(f"{WORKERS} {count}: can't be started ({error.strerror}); give a smaller number") from error

    def hand_on(number: int, frame: FrameType | None) -> None:
        handed_on.append(number)
        for worker in workers:
            worker.send_signal(number)

    _handle(hand_on)
    for number in early:
        hand_on(number, None)
    ends = [worker.wait() for worker in workers]
    codes = [Preempted.exit_code if -code in handed_on else code for code in ends]
    failed = [code if code > 0 else KILLED - code for code in codes if code]
    return next((code for code in failed if code != Preempted.exit_code), failed[0] if failed else 0)


def _handle(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in list_heeded_signals():
        signal.signal(number, handler)


def start_workers(count: int, overrides: Sequence[str], *, apart: bool = False) -> list[subprocess.Popen]:
    """Start `count` workers of one cluster, the chief first.

    Args:
        apart: in sessions of their own, which a terminal's signals do not reach.

    Raises:
        OSError: not all can be started; those that were are ended again.
    """
    addresses = ",".join(f"localhost:{port}" for port in find_free_ports(count))
    together = ["device=multiworker", f"device.workers=[{addresses}]"]
    workers: list[subprocess.Popen] = []
    try:
        for index in range(count):
            command = [*own_program(), *together, f"device.index={index}", *overrides]
            workers.append(subprocess.Popen(command, start_new_session=apart))
    except OSError:
        for worker in workers:
            worker.terminate()
            worker.wait()
        raise
    return workers


def find_free_ports(count: int) -> list[int]:
    """Return ports of this machine that were free a moment ago."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("localhost", 0))
        return [one.getsockname()[1] for one in sockets]
