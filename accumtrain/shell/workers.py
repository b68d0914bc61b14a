"""Starts several workers on this machine, to try out device=multiworker: accumtrain --workers 2 <overrides>."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from types import FrameType

from accumtrain.errors import ConfigError, Preempted
from accumtrain.process.interrupt import SIGNALS
from accumtrain.process.program import own_program
from accumtrain.shell.job_outcome import KILLED

WORKERS = "--workers"


def run_workers(arguments: Sequence[str]) -> int:
    """Runs workers, hands each signal that stops a job on to them, and waits.

    Returns:
        The first exit code of a worker that failed by itself; else 75 if one was stopped, else 0.

    Args:
        arguments: the number of workers, then overrides for all of them.

    Raises:
        ConfigError: the first argument is not a number of workers.
    """
    count, *overrides = arguments or ["nothing"]
    if not count.isdecimal() or int(count) < 1:
        raise ConfigError(f"{WORKERS} {count}: must be followed by how many; for example {WORKERS} 2 batch_size=64")
    workers: list[subprocess.Popen] = []

    def hand_on(number: int, frame: FrameType | None) -> None:
        for worker in workers:
            worker.send_signal(number)

    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, hand_on)
    workers += start_workers(int(count), overrides, apart=True)
    codes = [worker.wait() for worker in workers]
    failed = [code if code > 0 else KILLED - code for code in codes if code]
    return next((code for code in failed if code != Preempted.exit_code), failed[0] if failed else 0)


def start_workers(count: int, overrides: Sequence[str], *, apart: bool = False) -> list[subprocess.Popen]:
    """Starts `count` workers of one cluster, the chief first.

    Args:
        apart: in sessions of their own, which a terminal's signals do not reach.
    """
    addresses = ",".join(f"localhost:{port}" for port in free_ports(count))
    together = ["device=multiworker", f"device.workers=[{addresses}]"]
    return [
        subprocess.Popen(
            [*own_program(), *together, f"device.index={index}", *overrides],
            start_new_session=apart,
        )
        for index in range(count)
    ]


def free_ports(count: int) -> list[int]:
    """Ports of this machine that were free a moment ago."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("localhost", 0))
        return [one.getsockname()[1] for one in sockets]
