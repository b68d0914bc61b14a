"""Starts several workers on this machine, to try out device=multiworker: accumtrain --workers 2 <overrides>."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from types import FrameType

from accumtrain.errors import ConfigError
from accumtrain.process.program import own_program

WORKERS = "--workers"


def run_workers(arguments: Sequence[str]) -> int:
    """Runs workers, forwards SIGTERM to them and waits. Returns the first exit code that is not 0.

    Args:
        arguments: the number of workers, then overrides for all of them.

    Raises:
        ConfigError: the first argument is not a number of workers.
    """
    count, *overrides = arguments or ["nothing"]
    if not count.isdecimal() or int(count) < 1:
        raise ConfigError(f"{WORKERS} {count}: must be followed by how many; for example {WORKERS} 2 batch_size=64")
    workers = start_workers(int(count), overrides)

    def hand_on(number: int, frame: FrameType | None) -> None:
        for worker in workers:
            worker.send_signal(number)

    signal.signal(signal.SIGTERM, hand_on)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the workers too
    return next((code for code in [worker.wait() for worker in workers] if code), 0)


def start_workers(count: int, overrides: Sequence[str]) -> list[subprocess.Popen]:
    """Starts `count` workers of one cluster, the chief first."""
    addresses = ",".join(f"localhost:{port}" for port in free_ports(count))
    together = ["device=multiworker", f"device.workers=[{addresses}]"]
    return [
        subprocess.Popen([*own_program(), *together, f"device.index={index}", *overrides]) for index in range(count)
    ]


def free_ports(count: int) -> list[int]:
    """Ports of this machine that were free a moment ago."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("localhost", 0))
        return [one.getsockname()[1] for one in sockets]
