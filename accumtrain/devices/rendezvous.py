"""Workers wait for each other here, before TensorFlow's runtime starts, which would wait forever and ignore signals."""

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
        ConfigError: not all workers called within `timeout` seconds, one has another list of workers, two have the same
            index, or the port of this worker is in use.
    """
    deadline = time.monotonic() + timeout
    with _listen(cluster) as port:
        if cluster.index == 0:
            _await_workers(port, cluster, deadline, timeout)
    if cluster.index > 0:
        _report_to_chief(cluster, deadline, timeout)


def _listen(cluster: Cluster) -> socket.socket:
    """Opens the port of this worker, which TensorFlow will use after us."""
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
    connections: dict[int, socket.socket] = {}  # by index of the worker
    refused = ""
    try:
        while len(connections) < len(cluster.workers) - 1 and not refused:
            port.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connection, _ = port.accept()
            except TimeoutError as error:
                missing = [worker for i, worker in enumerate(cluster.workers[1:], 1) if i not in connections]
                raise ConfigError(
                    f"device=multiworker: {', '.join(missing)} did not come within {timeout:g} s; start "
                    "all workers with the same list of workers (device.timeout sets how long to wait)"
                ) from error
            index = _read_index(connection, cluster)
            if index is None:
                refused = "workers were started with different lists of workers"
            elif index in connections:
                refused = f"two workers were started with device.index={index}"
            connections[index or 0] = connection
        for connection in connections.values():
            connection.sendall(f"{refused or GO}\n".encode())
    finally:
        for connection in connections.values():
            connection.close()
    if refused:
        raise ConfigError(f"device=multiworker: {refused}")


def _read_index(connection: socket.socket, cluster: Cluster) -> int | None:
    """The index of the worker that connected; None if it belongs to another cluster."""
    connection.settimeout(5)
    digest, _, index = _read_line(connection).partition(" ")
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
                answer = _read_line(connection)
        except OSError:  # the chief has not started yet
            answer = ""
        if answer == GO:
            return
        if answer:
            raise ConfigError(f"device=multiworker: {answer}")
        time.sleep(PAUSE)


def _read_line(connection: socket.socket) -> str:
    with connection.makefile("r", encoding="utf-8", errors="replace") as lines:
        return lines.readline(1000).strip()


def _digest(cluster: Cluster) -> str:
    return hashlib.sha256(" ".join(cluster.workers).encode()).hexdigest()


def _address(worker: str) -> tuple[str, int]:
    host, _, port = worker.rpartition(":")
    return host, int(port)
