"""Several workers on this machine, to try out device=multiworker: python -m accumtrain.local_workers 2 <overrides>."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from types import FrameType

from accumtrain.errors import ConfigError

WORKER = "from accumtrain.cli import main; main()"


def main(arguments: Sequence[str]) -> int:
    """Runs workers, hands signals on to them and waits. Returns the first exit code that is not 0.

    Args:
        arguments: how many workers, then overrides for all of them.
    """
    if not arguments or not arguments[0].isdecimal() or int(arguments[0]) < 1:
        print("usage: make workers N=2 ARGS='model=revnet38 batch_size=64'", file=sys.stderr)
        return ConfigError.exit_code
    workers = start(int(arguments[0]), arguments[1:])

    def hand_on(number: int, frame: FrameType | None) -> None:
        for worker in workers:
            worker.send_signal(number)

    signal.signal(signal.SIGTERM, hand_on)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the workers too
    return next((code for code in [worker.wait() for worker in workers] if code), 0)


def start(count: int, overrides: Sequence[str]) -> list[subprocess.Popen]:
    """Starts `count` workers of one cluster, the chief first."""
    addresses = ",".join(f"localhost:{port}" for port in free_ports(count))
    together = ["device=multiworker", f"device.workers=[{addresses}]"]
    return [
        subprocess.Popen([sys.executable, "-c", WORKER, *together, f"device.index={index}", *overrides])
        for index in range(count)
    ]


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listened on a moment ago."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("localhost", 0))
        return [one.getsockname()[1] for one in sockets]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
