"""Workers meet, or say who is missing."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from accumtrain.devices.cluster import Cluster
from accumtrain.devices.rendezvous import meet
from accumtrain.errors import ConfigError
from accumtrain.shell.workers import free_ports


@pytest.fixture
def addresses():
    return tuple(f"localhost:{port}" for port in free_ports(3))


def meeting(clusters, timeout=10.0):
    """What each worker's `meet` ended with."""
    with ThreadPoolExecutor(len(clusters)) as pool:
        return [future.exception() for future in [pool.submit(meet, cluster, timeout) for cluster in clusters]]


def test_all_meet_in_any_order(addresses):
    assert meeting([Cluster(addresses, index) for index in (2, 0, 1)]) == [None, None, None]


def test_one_worker_meets_itself(addresses):
    meet(Cluster(addresses[:1], 0), 1.0)


def test_the_chief_names_who_is_missing(addresses):
    chief, _ = meeting([Cluster(addresses, 0), Cluster(addresses, 2)], timeout=2.0)
    assert isinstance(chief, ConfigError)
    assert f"device=multiworker: {addresses[1]} did not come within 2 s" in str(chief)


def test_a_worker_without_a_chief(addresses):
    with pytest.raises(ConfigError, match=f"the chief, {addresses[0]}, did not answer within 1 s"):
        meet(Cluster(addresses, 1), 1.0)


def test_different_lists_are_told_to_all(addresses):
    other = (addresses[0], addresses[1], "localhost:1")
    for error in meeting([Cluster(addresses, 0), Cluster(other, 1)]):
        assert "different lists of workers" in str(error)


def test_a_port_that_is_taken(addresses):
    host, port = addresses[0].split(":")
    with socket.create_server((host, int(port))), pytest.raises(ConfigError, match=f"can't listen on port {port}"):
        meet(Cluster(addresses, 0), 1.0)
