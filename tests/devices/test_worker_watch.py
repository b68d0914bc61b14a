"""Workers notice within seconds that another one is gone, and that one has ended in peace."""

import os
import signal
import socket
import subprocess

import pytest

from accumtrain.devices.worker_link import SILENCE, TICK, _Peer
from tests.programs import start_python

# A worker that does what `body` says when all watch. Shorter waits make no difference but to the test.
WORKER = """
import socket, sys, time
from accumtrain.devices import worker_link
from accumtrain.errors import DataError, Preempted, WorkerLostError

worker_link.SILENCE, worker_link.GRACE_GONE = 2.0, 1.0
connections = {{index: socket.socket(fileno=number) for index, number in {connections!r}.items()}}
try:
    with worker_link.WorkerMonitor(["a:1", "b:2", "c:3"], connections) as watch:
        while any(peer.silence < 0 for peer in watch._peers):
            time.sleep(0.01)
        print("ready", flush=True)
        sys.stdin.readline()
        {body}
except Preempted:
    sys.exit(75)
except DataError:
    sys.exit(3)
"""
ENDS = "time.sleep(0.2)"  # returns in peace
HANGS = "time.sleep(60)"


@pytest.fixture
def team():
    """Start a chief (0) and two workers with bodies. Return them when all three watch."""
    workers = []

    def start(*bodies):
        pairs = {index: socket.socketpair() for index in range(1, len(bodies))}
        ends = [{index: pair[0] for index, pair in pairs.items()}, *({0: pair[1]} for pair in pairs.values())]
        for body, mine in zip(bodies, ends, strict=True):
            numbers = {index: end.fileno() for index, end in mine.items()}
            program = WORKER.format(connections=numbers, body=body)
            workers.append(start_python("-c", program, stdin=subprocess.PIPE, pass_fds=list(numbers.values())))
        for mine in ends:
            for end in mine.values():
                end.close()
        for worker in workers:
            assert worker.stdout.readline() == "ready\n"
        return workers

    yield start
    for worker in workers:
        worker.kill()
        worker.communicate()


def go(workers):
    for worker in workers:
        print(file=worker.stdin, flush=True)


def ended(worker):
    _, err = worker.communicate(timeout=20)
    return worker.returncode, err


def lost(index, what):
    address = ["a:1", "b:2", "c:3"][index]
    return 75, (
        f"\nerror: another worker {what}: worker {index}, {address}; the last checkpoint is intact: start all workers "
        "again with the same command to continue from it\n"
    )


STOPS, FAILS = "raise Preempted()", "raise DataError()"


@pytest.mark.parametrize(
    ("bodies", "code"),
    [
        ((ENDS, ENDS, ENDS), 0),
        (("time.sleep(2)", ENDS, "pass"), 0),
        (("pass", ENDS, "time.sleep(2)"), 0),
        ((f"time.sleep(1); {STOPS}", STOPS, STOPS), 75),
        ((FAILS, FAILS, FAILS), 3),
    ],
)
def test_workers_that_all_end_alike_have_lost_none(team, bodies, code):
    workers = team(*bodies)
    go(workers)
    assert [ended(worker) for worker in workers] == [(code, "")] * 3


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_worker_that_is_killed(team, victim):
    workers = team(HANGS, HANGS, HANGS)
    go(workers)
    workers[victim].kill()
    for index in {0, 1, 2} - {victim}:
        assert ended(workers[index]) == lost(victim, "went away")


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 2])
def test_a_worker_that_stands_still(team, victim):
    workers = team(HANGS, HANGS, HANGS)
    go(workers)
    os.kill(workers[victim].pid, signal.SIGSTOP)
    seen = {index: ended(workers[index]) for index in {0, 1, 2} - {victim}}
    os.kill(workers[victim].pid, signal.SIGCONT)
    first, *others = seen.values()
    assert first == lost(victim, "has been silent for 2 s")
    # the chief tells the others, in other words; without it, each finds out by itself
    assert others == [first if victim == 0 else lost(victim, "went away")]
    assert ended(workers[victim])[0] == 75


def test_a_worker_that_fails_alone(team):
    workers = team(HANGS, FAILS, HANGS)
    go(workers)
    assert [ended(worker) for worker in workers] == [lost(1, "went away"), (3, ""), lost(1, "went away")]


def test_what_tensorflow_raises_ends_the_process_at_once(team):
    """TensorFlow's own shutdown would wait for the lost worker."""
    slow = "import atexit; atexit.register(time.sleep, 60)"
    first, *_ = workers = team(f"{slow}; print('said'); raise WorkerLostError('by TensorFlow')", HANGS, HANGS)
    go(workers)
    out, err = first.communicate(timeout=20)
    assert (first.returncode, out) == (75, "said\n")
    assert "WorkerLostError: by TensorFlow" in err


def test_a_worker_that_has_not_spoken_yet_is_not_missed():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = _Peer(1, ours)
        for _ in range(int(2 * SILENCE / TICK)):
            assert peer.hear() == []
        assert peer.silence < SILENCE
        theirs.send(b"he")
        assert peer.hear() == []
        theirs.send(b"re\nhere\n")
        assert peer.hear() == [b"here", b"here"]
        for _ in range(int(2 * SILENCE / TICK)):
            peer.hear()
        assert peer.silence > SILENCE
