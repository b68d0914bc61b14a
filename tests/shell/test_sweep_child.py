"""A job in a process of its own: what it gets, what it prints, and the ways it ends."""

from __future__ import annotations

import signal
import subprocess
import sys

import psutil
import pytest

from accumtrain.shell import sweep_child as process

STOPS = """
import signal, time
from accumtrain.shell.sweep_child import receive
def stop(number, frame):
    print("saved")
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
print("batch", receive().batch_size, flush=True)
time.sleep(60)
"""


@pytest.fixture
def run(monkeypatch, compose):
    """Runs a short program in the place of a job."""

    def program(text, wanted=lambda: True):
        monkeypatch.setattr(process, "PROGRAM", "import sys; sys.path[:] = {path!r}\n" + text)
        return process.run(compose("batch_size=32"), "run 7", wanted)

    return program


def test_a_job_says_and_returns_what_it_does(run, capfd):
    code = run(
        "from accumtrain.shell.sweep_child import receive\n"
        "print('batch', receive().batch_size, end='\\n\\n'); print('no', file=sys.stderr); sys.exit(3)"
    )
    assert code == 3
    assert capfd.readouterr() == ("run 7 | batch 32\n\n", "run 7 | no\n")


def test_a_job_that_is_killed_is_told_of(run, capfd):
    assert run("import os; os.kill(os.getpid(), 9)") == 137
    assert capfd.readouterr().err.startswith("error: run 7 was killed by SIGKILL; if that was the system")


def test_a_job_that_is_not_wanted_any_more_saves_its_state(run, capfd):
    answers = iter([True, True, False])
    assert run(STOPS, lambda: next(answers)) == 75
    assert capfd.readouterr().out == "run 7 | batch 32\nrun 7 | saved\n"


def test_a_job_that_is_stopped_before_it_has_a_state(run):
    answers = iter([True, False])
    waits = "import time; from accumtrain.shell.sweep_child import receive; receive(); time.sleep(60)"
    assert run(waits, lambda: next(answers)) == 130


def test_a_job_ends_with_the_process_that_waits_for_it():
    program = f"import sys; sys.path[:] = {sys.path!r}\n{STOPS}"
    parent = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {program!r}], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    waits = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(waits.stdout.readline()))
    waits.kill()
    waits.communicate()
    gone, _ = psutil.wait_procs([child], timeout=20)
    assert gone or child.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("name", "given", "threads"),
    [("LokyProcess-1", {}, "3"), ("LokyProcess-1", {process.THREADS: "2"}, "2"), ("MainProcess", {}, None)],
)
def test_jobs_side_by_side_share_the_cores(run, monkeypatch, capfd, name, given, threads):
    monkeypatch.delenv(process.THREADS, raising=False)
    for key, value in {process.CORES: "3", **given}.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(process.current_process(), "_name", name)
    assert run(f"import os; print(os.environ.get('{process.THREADS}'))") == 0
    assert capfd.readouterr().out == f"run 7 | {threads}\n"


def test_ctrl_c_reaches_a_job_whose_launcher_has_blocked_it(run, capfd):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        run(
            "import signal; from accumtrain.shell.sweep_child import receive; receive()\n"
            "print(signal.pthread_sigmask(signal.SIG_BLOCK, []))"
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert capfd.readouterr().out == "run 7 | set()\n"
