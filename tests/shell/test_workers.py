"""accumtrain --workers 2 ...: several processes of one cluster on this machine."""

from __future__ import annotations

import signal
import sys

import pytest

from accumtrain.shell import workers

WORKER = """
import sys
print(*sys.argv[1:], flush=True)
index = int(sys.argv[3].partition("=")[2])
sys.exit({0: 0, 1: 3, 2: 5}[index])
"""


@pytest.fixture(autouse=True)
def _signals():
    """What the command makes of signals is undone."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_each_worker_knows_the_cluster_and_the_first_failure_is_that_of_the_command(command, monkeypatch):
    monkeypatch.setattr(workers, "own_program", lambda: [sys.executable, "-c", WORKER])
    answer = command("--workers", "3", "batch_size=12", "run.name=one")
    assert answer.code == 3
    given = sorted(line.split() for line in answer.out.splitlines())
    assert [words[2] for words in given] == ["device.index=0", "device.index=1", "device.index=2"]
    assert {(words[0], *words[3:]) for words in given} == {("device=multiworker", "batch_size=12", "run.name=one")}
    (addresses,) = {words[1] for words in given}
    assert addresses.startswith("device.workers=[localhost:")
    assert len(set(addresses.strip("]").partition("[")[2].split(","))) == 3


@pytest.mark.parametrize("arguments", [[], ["0"], ["many", "batch_size=12"], ["batch_size=12"]])
def test_how_many_must_be_said(command, arguments):
    answer = command("--workers", *arguments)
    assert answer.code == 2
    assert "must be followed by how many; for example --workers 2 batch_size=64" in answer.err
    assert answer.err.count("\n") == 1
