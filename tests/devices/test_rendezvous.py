"""Workers meet, or say who is missing."""

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from queue import Queue

import pytest

from accumtrain.cli.workers import find_free_ports
from accumtrain.devices import worker_link
from accumtrain.devices.cluster import Cluster
from accumtrain.devices.worker_link import wait_for_workers
from accumtrain.errors import ConfigError, WorkerLostError

LIMIT = 60.0  # seconds: a busy machine needs more than a worker that waits


@pytest.fixture
def addresses():
    return tuple(f"localhost:{port}" for port in find_free_ports(3))


def meeting(clusters, timeout=LIMIT):
    """Return the end of each worker's wait: its connections, or an exception."""
    with ThreadPoolExecutor(len(clusters)) as pool:
        futures = [pool.submit(wait_for_workers, cluster, timeout) for cluster in clusters]
        return [future.exception() or future.result() for future in futures]


def test_all_meet_in_any_order(addresses):
    second, chief, first = meeting([Cluster(addresses, index) for index in (2, 0, 1)])
    assert (second.keys(), chief.keys(), first.keys()) == ({0}, {1, 2}, {0})
    with ExitStack() as opened:
        for connection in (*second.values(), *chief.values(), *first.values()):
            opened.enter_context(connection)
        for index, other in ((1, first), (2, second)):
            chief[index].sendall(b"%d" % index)
            assert other[0].recv(10) == b"%d" % index, "nothing is lost of what follows"


def test_the_port_is_free_for_tensorflow(addresses):
    chief, first = meeting([Cluster(addresses[:2], index) for index in (0, 1)])
    with chief[1], first[0], socket.create_server(("", int(addresses[0].split(":")[1]))):
        pass


def test_somebody_else_may_knock(addresses, monkeypatch):
    host, port = addresses[0].split(":")
    monkeypatch.setattr(worker_link, "PATIENCE", 0.1)
    with ThreadPoolExecutor(2) as pool:
        chief = pool.submit(wait_for_workers, Cluster(addresses[:2], 0), LIMIT)
        with _reached(host, int(port)):
            first = pool.submit(wait_for_workers, Cluster(addresses[:2], 1), LIMIT)
            with chief.result()[1], first.result()[0]:
                pass


def _reached(host, port):
    """Return a connection that says nothing, to a port that is about to open."""
    while True:
        with suppress(ConnectionRefusedError):
            return socket.create_connection((host, port))


def test_one_worker_meets_itself(addresses):
    assert wait_for_workers(Cluster(addresses[:1], 0), 1.0) == {}


def test_the_chief_names_who_is_missing(addresses):
    chief, _ = meeting([Cluster(addresses, 0), Cluster(addresses, 2)], timeout=2.0)
    assert isinstance(chief, WorkerLostError), "which a scheduler starts again"
    assert f"device=multiworker: {addresses[1]} did not connect within 2 s" in str(chief)


def test_a_worker_without_a_chief(addresses):
    with pytest.raises(WorkerLostError, match=f"the chief, {addresses[0]}, did not answer within 1 s"):
        wait_for_workers(Cluster(addresses, 1), 1.0)


@pytest.mark.parametrize("order", [(1, 2), (2, 1)], ids=["it comes first", "it comes last"])
def test_a_worker_that_was_started_again_is_taken_in_place_of_the_one_that_is_gone(addresses, monkeypatch, order):
    known, read_index = Queue(), worker_link._read_index

    def read_and_tell(connection, cluster):
        known.put(index := read_index(connection, cluster))
        return index

    monkeypatch.setattr(worker_link, "_read_index", read_and_tell)
    with ThreadPoolExecutor(3) as pool, ExitStack() as opened:
        workers = {0: pool.submit(wait_for_workers, Cluster(addresses, 0), LIMIT)}
        with _reported(Cluster(addresses, 1)):
            assert known.get(timeout=LIMIT) == 1, "the chief counts on the one that is gone now"
        for index in order:
            workers[index] = pool.submit(wait_for_workers, Cluster(addresses, index), LIMIT)
            assert known.get(timeout=LIMIT) == index
        for future in workers.values():
            for connection in future.result().values():
                opened.enter_context(connection)
        workers[1].result()[0].sendall(b"1")
        assert workers[0].result()[1].recv(1) == b"1"


def test_two_workers_with_the_same_index(addresses):
    with ThreadPoolExecutor(1) as pool:
        meets = pool.submit(wait_for_workers, Cluster(addresses, 0), LIMIT)
        with _reported(Cluster(addresses, 1)), _reported(Cluster(addresses, 1)):
            assert (
                str(meets.exception())
                == "device=multiworker: two workers were started with device.index=1; give each a number of its own"
            )


def _reported(cluster):
    """Return the connection of a worker that waits for its chief's answer."""
    host, port = cluster.workers[0].split(":")
    connection = _reached(host, int(port))
    connection.sendall(f"{worker_link._digest(cluster)} {cluster.index}\n".encode())
    return connection


def test_a_worker_that_went_away_while_it_waited(addresses):
    class Gone:
        def sendall(self, answer):
            raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(WorkerLostError, match=rf"{addresses[1]} went away while it waited for others \(Broken pipe\)"):
        worker_link._answer(Gone(), "go", addresses[1])


def test_an_ipv6_address_stands_in_brackets():
    assert worker_link._address("[::1]:2222") == ("::1", 2222)


def test_different_lists_are_told_to_all(addresses):
    other = (addresses[0], addresses[1], "localhost:1")
    for error in meeting([Cluster(addresses, 0), Cluster(other, 1)]):
        assert "different lists of workers" in str(error)


def test_a_port_that_is_taken(addresses):
    host, port = addresses[0].split(":")
    with socket.create_server((host, int(port))), pytest.raises(ConfigError, match=f"can't listen on port {port}"):
        wait_for_workers(Cluster(addresses, 0), 1.0)
