"""Sockets between workers, by which they wait for each other at the start and notice within seconds that one is lost.

TensorFlow's runtime would wait forever and ignore signals. Its own heartbeats take 20 s, and a collective operation may
wait longer.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType

from accumtrain.devices.cluster import Cluster
from accumtrain.errors import ConfigError, DivergedError, Preempted, WorkerLostError
from accumtrain.process.signals import end_now

GO = "go"
LONGEST = 1000  # bytes of a line
PATIENCE = 5.0  # seconds that a worker has to say who it is
PAUSE = 0.2  # seconds between two attempts to reach the chief

TICK = 0.25  # seconds between two signs of life
SILENCE = 4.0  # seconds without any after which a worker counts as lost
GRACE_SILENT, GRACE_GONE = 0.3, 2.0  # seconds that the main thread then has to end by itself
FAREWELL = 1.0  # seconds that the others have to take note of a goodbye
HERE, BYE, LOST, GONE = b"here", b"bye", b"lost", b"gone"  # words: a line each; gone is the end of the connection
TOGETHER = (Preempted, DivergedError)  # raised by all workers after the same update

# ---- at the start ----


def wait_for_workers(cluster: Cluster, timeout: float) -> dict[int, socket.socket]:
    """Wait until every worker of the cluster has called this function.

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
    """Open the port of this worker, which TensorFlow will use later."""
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
                    f"device=multiworker: {', '.join(missing)} did not connect within {timeout:g} s; start "
                    "all workers with the same list of workers (device.timeout sets how long to wait)"
                ) from error
            try:
                index = _read_index(connection, cluster)
            except OSError:  # it is no worker, or has ended
                connection.close()
                continue
            for gone in [i for i, waiting in connections.items() if not _is_open(waiting)]:
                connections.pop(gone).close()  # the worker may connect again
            if index is None:
                refused = "workers were started with different lists of workers; give all of them the same list"
            elif index in connections:
                refused = f"two workers were started with device.index={index}; give each a number of its own"
            connections[index or 0] = connection
        for index, connection in connections.items():
            _answer(connection, refused or GO, cluster.workers[index])
        if refused:
            raise ConfigError(f"device=multiworker: {refused}")
        opened.pop_all()
    return connections


def _read_index(connection: socket.socket, cluster: Cluster) -> int | None:
    """Return the index of the worker that connected; None if it belongs to another cluster."""
    connection.settimeout(PATIENCE)
    digest, _, index = _read_line(connection).partition(" ")
    return int(index) if digest == _digest(cluster) and index.isdecimal() else None


def _is_open(connection: socket.socket) -> bool:
    """Return whether the worker at the other end still waits. It sends nothing while it does."""
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
    """Return a line of at most LONGEST bytes. It is read byte by byte, as more may follow for another reader."""
    line = b""
    while not line.endswith(b"\n") and len(line) < LONGEST and (byte := connection.recv(1)):
        line += byte
    return line.decode(errors="replace").strip()


def _digest(cluster: Cluster) -> str:
    return hashlib.sha256(" ".join(cluster.workers).encode()).hexdigest()


def _address(worker: str) -> tuple[str, int]:
    host, _, port = worker.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)  # an IPv6 address stands in brackets


# ---- afterwards ----


class WorkerMonitor:
    """Context of what workers do together. The constructor sends nothing.

    Each worker says all the time that it is there: the others to the chief, the chief to all. One that ends says
    goodbye. One that is killed closes its connection without a word. One that stands still or has lost its network
    falls silent.

    When a worker is lost, this process ends with the exit code of WorkerLostError: by itself, as TensorFlow has raised
    an error, or at once if the main thread stays in a collective operation.

    Args:
        workers: host:port of each, the chief first.
        connections: to other workers, by their index: the chief's to all, another's to the chief.
    """

    def __init__(self, workers: Sequence[str], connections: Mapping[int, socket.socket]):
        self._workers = workers
        self._peers = [_Peer(index, connection) for index, connection in connections.items()]
        self._leaving = threading.Event()
        self._in_peace = False
        self._thread = threading.Thread(target=self._watch, name="worker watch", daemon=True)

    def __enter__(self) -> WorkerMonitor:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._in_peace = kind is None or issubclass(kind, TOGETHER)
        if kind is WorkerLostError:
            atexit.register(_exit_as_lost)
        self._leaving.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._leaving.is_set():
            for peer in self._peers:
                peer.say(HERE)
                self._listen(peer)
            self._peers = [peer for peer in self._peers if not peer.parted]
            self._leaving.wait(TICK)
        self._part()

    def _listen(self, peer: _Peer) -> None:
        for word in peer.hear():
            if word.startswith(LOST):
                self._lose(int(word.split()[1]), "went away", GRACE_SILENT)
            elif word == GONE:
                self._lose(peer.index, "went away", GRACE_GONE)
        if peer.silence >= SILENCE:
            self._lose(peer.index, f"has been silent for {SILENCE:g} s", GRACE_SILENT)

    def _lose(self, index: int, what: str, grace: float) -> None:
        """Tell the others that a worker is lost, and end the process if the main thread does not.

        Args:
            index: of the lost worker.
            what: happened to it, in words.
            grace: seconds for the main thread to end the process.
        """
        for peer in self._peers:
            if peer.index != index:
                peer.say(LOST, str(index).encode())
        if not self._leaving.wait(grace):
            end_now(
                f"another worker {what}: worker {index}, {self._workers[index]}; the last checkpoint is intact: "
                "start all workers again with the same command to continue from it",
                WorkerLostError.exit_code,
            )

    def _part(self) -> None:
        """Close the connections.

        After a normal end it waits until the others have said goodbye, too. A connection that is closed while data is
        unread is reset, and the other side could lose the goodbye of this one.
        """
        end = time.monotonic() + FAREWELL
        for peer in self._peers if self._in_peace else ():
            peer.say(BYE)
        while self._in_peace and not all(peer.parted for peer in self._peers) and time.monotonic() < end:
            time.sleep(0.02)
            for peer in self._peers:
                peer.hear()
        for peer in self._peers:
            peer.close()


class _Peer:
    """Another worker, at the other end of a connection.

    Attributes:
        silence: seconds since its last word, from the first on: while its runtime starts it can't speak. Time in which
            this process stands still does not count.
        parted: whether it said goodbye, or the connection has ended.
    """

    def __init__(self, index: int, connection: socket.socket):
        connection.setblocking(False)
        self.index, self._connection = index, connection
        self.silence = -float("inf")
        self.parted = False
        self._rest = b""

    def say(self, *words: bytes) -> None:
        with suppress(OSError):  # `hear` notices the end of the connection
            self._connection.send(b" ".join(words) + b"\n")

    def hear(self) -> list[bytes]:
        """Return the words that have come since the last call. After a goodbye the connection is closed."""
        if self.parted:
            return []
        try:
            received = self._connection.recv(4096)
        except BlockingIOError:
            self.silence += TICK
            return []
        except OSError:
            received = b""
        self.silence = 0.0
        *words, self._rest = (self._rest + received).split(b"\n")
        if BYE in words or not received:
            self.close()
        return words if received else [*words, GONE]

    def close(self) -> None:
        self.parted = True
        self._connection.close()


def _exit_as_lost() -> None:
    """End the process without TensorFlow's shutdown, which waits for the lost worker."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(WorkerLostError.exit_code)
