"""All workers meet before TensorFlow's runtime starts, which waits without end, deaf to signals, if one is missing."""

from __future__ import annotations

import hashlib
import socket
import time

from accumtrain.devices.cluster import Cluster
from accumtrain.errors import ConfigError

GO = "go"
PAUSE = 0.2  # seconds between two attempts to reach the chief


def meet(cluster: Cluster, timeout: float) -> None:
    """Returns when every worker of the cluster has called it.

    Raises:
        ConfigError: not all came within `timeout` seconds, one has another list of workers or the same index, or this
            one's port is in use.
    """
    deadline = time.monotonic() + timeout
    with _listening(cluster) as port:
        if cluster.index == 0:
            _await_workers(port, cluster, deadline, timeout)
    if cluster.index > 0:
        _report_to_chief(cluster, deadline, timeout)


def _listening(cluster: Cluster) -> socket.socket:
    """The port of this worker, which TensorFlow will take over."""
    _, number = _address(cluster.workers[cluster.index])
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        return socket.create_server(("", number), family=family, dualstack_ipv6=both)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"device=multiworker: worker {cluster.index} can't listen on port {number} ({error}); give it another "
            "one in the list of workers"
        ) from error


def _await_workers(port: socket.socket, cluster: Cluster, deadline: float, timeout: float) -> None:
    came: dict[int, socket.socket] = {}
    refused = ""
    try:
        while len(came) < len(cluster.workers) - 1 and not refused:
            port.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                guest, _ = port.accept()
            except TimeoutError as error:
                missing = [worker for i, worker in enumerate(cluster.workers[1:], 1) if i not in came]
                raise ConfigError(
                    f"device=multiworker: {', '.join(missing)} did not come within {timeout:g} s; start "
                    "all workers with the same list of workers (device.timeout sets how long to wait)"
                ) from error
            index = _introduced(guest, cluster)
            if index is None:
                refused = "workers were started with different lists of workers"
            elif index in came:
                refused = f"two workers were started with device.index={index}"
            came[index or 0] = guest
        for guest in came.values():
            guest.sendall(f"{refused or GO}\n".encode())
    finally:
        for guest in came.values():
            guest.close()
    if refused:
        raise ConfigError(f"device=multiworker: {refused}")


def _introduced(guest: socket.socket, cluster: Cluster) -> int | None:
    """The index of a worker that knocked; None if it belongs to another cluster."""
    guest.settimeout(5)
    digest, _, index = _line(guest).partition(" ")
    return int(index) if digest == _digest(cluster) and index.isdecimal() else None


def _report_to_chief(cluster: Cluster, deadline: float, timeout: float) -> None:
    chief = cluster.workers[0]
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise ConfigError(
                f"device=multiworker: the chief, {chief}, did not answer within {timeout:g} s, or waits for others; "
                "start all workers with the same list of workers (device.timeout sets how long to wait)"
            )
        try:
            with socket.create_connection(_address(chief), timeout=left) as connection:
                connection.sendall(f"{_digest(cluster)} {cluster.index}\n".encode())
                answer = _line(connection)
        except OSError:  # it is not there yet
            answer = ""
        if answer == GO:
            return
        if answer:
            raise ConfigError(f"device=multiworker: {answer}")
        time.sleep(PAUSE)


def _line(connection: socket.socket) -> str:
    with connection.makefile("r", encoding="utf-8", errors="replace") as lines:
        return lines.readline(1000).strip()


def _digest(cluster: Cluster) -> str:
    return hashlib.sha256(" ".join(cluster.workers).encode()).hexdigest()


def _address(worker: str) -> tuple[str, int]:
    host, _, port = worker.rpartition(":")
    return host, int(port)
