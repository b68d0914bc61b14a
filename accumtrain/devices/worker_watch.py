"""Notices within seconds that another worker is gone, by the connections that are left from the rendezvous.

TensorFlow's own heartbeats take 20 s, and a collective operation may wait longer. Here each worker says all the time
that it is there: the others to the chief, the chief to all. One that ends says goodbye. One that is killed closes its
connection without a word, and one that stands still or has lost its network falls silent.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType

from accumtrain.errors import DivergedError, Preempted, WorkerLostError
from accumtrain.process.end import end_now

TICK = 0.25  # seconds between two signs of life
SILENCE = 4.0  # seconds without any after which a worker counts as lost
GRACE_SILENT, GRACE_GONE = 0.3, 2.0  # seconds that the main thread then has to end by itself
FAREWELL = 1.0  # seconds that the others have to take note of a goodbye
HERE, BYE, LOST, GONE = b"here", b"bye", b"lost", b"gone"  # words: a line each; gone is the end of the connection
TOGETHER = (Preempted, DivergedError)  # raised by all workers after the same update


class WorkerWatch:
    """Context of what workers do together. The constructor sends nothing.

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

    def __enter__(self) -> WorkerWatch:
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
        """Tells the others, and ends the process if the main thread does not."""
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
        """Closes the connections.

        After a normal end it waits until the others have said goodbye, too. To close a connection while data is unread
        resets it, and the other side could lose our goodbye.
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
        with suppress(OSError):  # the end of the connection is heard
            self._connection.send(b" ".join(words) + b"\n")

    def hear(self) -> list[bytes]:
        """The words that have come since the last call. After a goodbye the connection is closed."""
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
    """In the place of TensorFlow's shutdown, which waits for the lost worker."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(WorkerLostError.exit_code)
