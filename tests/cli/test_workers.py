"""accumtrain --workers 2 ...: several processes of one cluster on this machine."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from accumtrain.cli import workers
from accumtrain.process.signals import SIGNALS
from tests.programs import start_python

WORKER = r"""
import sys
sys.stdout.write(" ".join(sys.argv[1:]) + "\n")  # at once: the three write to one pipe
sys.stdout.flush()
index = int(sys.argv[3].partition("=")[2])
sys.exit({0: 0, 1: 3, 2: 5}[index])
"""


@pytest.fixture(autouse=True)
def _signals():
    """Undo what the command makes of signals."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_each_worker_knows_the_cluster_and_the_first_failure_is_that_of_the_command(command, monkeypatch):
    monkeypatch.setattr(workers, "own_program", lambda: [sys.executable, "-c", WORKER])
    answer = command("--workers", "3", "batch_size=12", "run.name=one")
    assert answer.code == 3
    given = sorted(line.split() for line in answer.out.splitlines() if line.startswith("device=multiworker"))
    assert len(given) == 3, answer.out
    assert [words[2] for words in given] == ["device.index=0", "device.index=1", "device.index=2"]
    assert {(words[0], *words[3:]) for words in given} == {("device=multiworker", "batch_size=12", "run.name=one")}
    (addresses,) = {words[1] for words in given}
    assert addresses.startswith("device.workers=[localhost:")
    assert len(set(addresses.strip("]").partition("[")[2].split(","))) == 3


@pytest.mark.parametrize("arguments", [[], ["0"], ["many", "batch_size=12"], ["batch_size=12"]])
def test_how_many_must_be_said(refused, arguments):
    message = refused("--workers", *arguments)
    assert "must be followed by the number of workers; for example --workers 2 batch_size=64" in message
    assert message.count("\n") == 1


def test_a_signal_while_workers_are_started_reaches_all_of_them(command, monkeypatch):
    """One that has not come to heed signals is ended by it, and was stopped: the same command continues."""
    start = subprocess.Popen

    def start_and_stop(arguments, **more):
        process = start(arguments, **more)
        os.kill(os.getpid(), signal.SIGTERM)
        return process

    monkeypatch.setattr(workers, "own_program", lambda: [sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(workers.subprocess, "Popen", start_and_stop)
    assert command("--workers", "2").code == 75


def test_workers_that_can_not_all_be_started(refused, monkeypatch):
    started, start = [], subprocess.Popen

    def start_one(arguments, **more):
        if started:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        started.append(start(arguments, **more))
        return started[0]

    monkeypatch.setattr(workers, "own_program", lambda: [sys.executable, "-c", "import time; time.sleep(60)"])
    monkeypatch.setattr(workers.subprocess, "Popen", start_one)
    said = "error: --workers 2: can't be started (Resource temporarily unavailable); give a smaller number\n"
    assert refused("--workers", "2") == said
    assert started[0].returncode == -signal.SIGTERM, "it does not wait for one that never comes"


LAUNCHER = """
import sys
from accumtrain.cli import workers
workers.own_program = lambda: [sys.executable, "-c", {worker!r}]
sys.exit(workers.run_workers(["2"]))
"""
LISTENER = """
import os, signal, sys, time
def hear(number, frame):
    os.write(1, signal.Signals(number).name.encode() + b"\\n")
numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT}
for number in numbers:
    signal.signal(number, hear)
signal.signal(signal.SIGUSR2, lambda number, frame: sys.exit(7))
os.write(1, b"ready\\n")
for _ in range(3000):
    time.sleep(0.01)
"""


@pytest.fixture
def launcher():
    """A launcher of two workers that print the signals they get, in a group of processes of its own."""
    processes = []

    def start(worker=LISTENER):
        process = start_python("-c", LAUNCHER.format(worker=worker), stderr=None, start_new_session=True)
        processes.append(process)
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        return process

    yield start
    for process in processes:
        for each in [*psutil.Process(process.pid).children(), process] if process.poll() is None else ():
            each.kill()
        process.communicate()


@pytest.mark.parametrize("whole_group", [True, False])
def test_each_signal_reaches_each_worker_once(launcher, whole_group):
    """Ctrl-C in a terminal goes to the whole group of the command, `kill` to the launcher alone."""
    process = launcher()
    listeners = psutil.Process(process.pid).children()
    for number in SIGNALS:
        (os.killpg if whole_group else os.kill)(process.pid, number)
        assert [process.stdout.readline() for _ in range(2)] == [f"{number.name}\n"] * 2
    for listener in listeners:
        listener.send_signal(signal.SIGUSR2)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (7, "")


def test_a_worker_that_is_killed(launcher):
    process = launcher()
    for listener in psutil.Process(process.pid).children():
        listener.kill()
    process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGKILL


def test_a_failure_comes_before_a_stop(command, monkeypatch):
    """The others stop with 75 when one has failed, and a scheduler would start them again for that."""
    worker = "import sys; sys.exit([75, 3][int(sys.argv[3].partition('=')[2])])"
    monkeypatch.setattr(workers, "own_program", lambda: [sys.executable, "-c", worker])
    assert command("--workers", "2").code == 3
