"""Workers wait for each other here, before TensorFlow's runtime starts, which would wait forever and ignore signals."""

from __future__ import annotations

import hashlib
import socket
import time
from contextlib import ExitStack

from accumtrain.devices.cluster import Cluster
from accumtrain.errors import ConfigError, WorkerLostError

GO = "go"
LONGEST = 1000  # bytes of a line
PATIENCE = 5.0  # seconds that a worker has to say who it is
PAUSE = 0.2  # seconds between two attempts to reach the chief


def meet(cluster: Cluster, timeout: float) -> dict[int, socket.socket]:
    """Returns when every worker of the cluster has called it.

    Returns:
        The connections that stay open, by index of the worker at the other end: the chief's to all others, that of
        another worker to the chief.

    Raises:
        ConfigError: one has another list of workers, two have the same index, or the port of this worker is in use.
        WorkerLostError: not all workers called within `timeout` seconds, or one went away meanwhile.
    """
    deadline = time.monotonic() + timeout
    with _listen(cluster) as port:
        if cluster.index == 0:
            return _await_workers(port, cluster, deadline, timeout)
    return {0: _report_to_chief(cluster, deadline, timeout)}


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


def _await_workers(port: socket.socket, cluster: Cluster, deadline: float, timeout: float) -> dict[int, socket.socket]:
    connections: dict[int, socket.socket] = {}  # by index of the worker
    refused = ""
    with ExitStack() as opened:  # closed if one is missing
        while len(connections) < len(cluster.workers) - 1 and not refused:
            port.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                connection = opened.enter_context(port.accept()[0])
            except TimeoutError as error:
                missing = [worker for i, worker in enumerate(cluster.workers[1:], 1) if i not in connections]
                raise WorkerLostError(
                    f"device=multiworker: {', '.join(missing)} did not come within {timeout:g} s; start "
                    "all workers with the same list of workers (device.timeout sets how long to wait)"
                ) from error
            try:
                index = _read_index(connection, cluster)
            except OSError:  # whoever it was
                connection.close()
                continue
            if index in connections and not _is_open(connections[index]):  # it was started again
                connections.pop(index).close()
            if index is None:
                refused = "workers were started with different lists of workers"
            elif index in connections:
                refused = f"two workers were started with device.index={index}"
            connections[index or 0] = connection
        for index, connection in connections.items():
            _answer(connection, refused or GO, cluster.workers[index])
        if refused:
            raise ConfigError(f"device=multiworker: {refused}")
        opened.pop_all()
    return connections


def _read_index(connection: socket.socket, cluster: Cluster) -> int | None:
    """The index of the worker that connected; None if it belongs to another cluster."""
    connection.settimeout(PATIENCE)
    digest, _, index = _read_line(connection).partition(" ")
    return int(index) if digest == _digest(cluster) and index.isdecimal() else None


def _is_open(connection: socket.socket) -> bool:
    """Whether the worker at the other end, which says nothing more, still waits."""
    connection.settimeout(0)
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        connection.settimeout(PATIENCE)


def _answer(connection: socket.socket, answer: str, worker: str) -> None:
    try:
        connection.sendall(f"{answer}\n".encode())
    except OSError as error:
        raise WorkerLostError(
            f"device=multiworker: {worker} went away while it waited for others ({error.strerror}); start all workers "
            "again"
        ) from error


def _report_to_chief(cluster: Cluster, deadline: float, timeout: float) -> socket.socket:
    chief = cluster.workers[0]
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise WorkerLostError(
                f"device=multiworker: the chief, {chief}, did not answer within {timeout:g} s, or waits for others; "
                "start all workers with the same list of workers (device.timeout sets how long to wait)"
            )
        with ExitStack() as opened:  # closed unless the answer is GO
            try:
                connection = opened.enter_context(socket.create_connection(_address(chief), timeout=left))
                connection.sendall(f"{_digest(cluster)} {cluster.index}\n".encode())
                answer = _read_line(connection)
            except OSError:  # the chief has not started yet
                answer = ""
            if answer == GO:
                opened.pop_all()
                return connection
        if answer:
            raise ConfigError(f"device=multiworker: {answer}")
        time.sleep(PAUSE)


def _read_line(connection: socket.socket) -> str:
    """A line of at most LONGEST bytes. Byte by byte, as more may follow, for another reader."""
    line = b""
    while not line.endswith(b"\n") and len(line) < LONGEST and (byte := connection.recv(1)):
        line += byte
    return line.decode(errors="replace").strip()


def _digest(cluster: Cluster) -> str:
    return hashlib.sha256(" ".join(cluster.workers).encode()).hexdigest()


def _address(worker: str) -> tuple[str, int]:
    host, _, port = worker.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)  # an IPv6 address stands in brackets
