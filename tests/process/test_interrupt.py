"""Signals that stop a job."""

import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from accumtrain.errors import Preempted
from accumtrain.process.signals import SIGNALS, DeferredSignals, JobSignals, StoppedBySignal
from tests.programs import run_python, start_python

PROGRAM = """
import sys
from accumtrain.process.signals import DeferredSignals, JobSignals
with JobSignals(), DeferredSignals() as interrupt:
    print("ready", flush=True)
    while sys.stdin.readline():
        print("requested" if interrupt.requested else "nothing", flush=True)
"""
NAMES = [each.name for each in SIGNALS]

LEFT_ALONE = """
from accumtrain.errors import ConfigError, Preempted
from accumtrain.process.signals import StoppedBySignal, without_traceback
for _ in range(2):
    try:
        with without_traceback():
            raise {error}
    except (Preempted, StoppedBySignal) as caught:
        stop = caught
raise stop
"""


@pytest.mark.parametrize(
    ("error", "code", "out", "err"),
    [
        ("Preempted('its state is saved')", 75, "its state is saved\n", ""),
        ("StoppedBySignal('SIGINT')", 130, "", "error: interrupted before there was anything to save\n"),
    ],
)
def test_a_program_that_a_signal_has_stopped_ends_without_a_traceback(error, code, out, err):
    done = run_python("-c", LEFT_ALONE.format(error=error))
    assert (done.returncode, done.stdout, done.stderr) == (code, out, err)


def test_other_errors_after_a_stop_have_their_traceback():
    script = LEFT_ALONE.format(error="Preempted('stopped')").replace("raise stop", "raise ConfigError('wrong')")
    done = run_python("-c", script)
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_a_notebook_shows_the_message_of_a_stopped_run():
    assert Preempted("its state is saved")._render_traceback_() == ["its state is saved"]


def send(number):
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def _heeded():
    """Heed all signals, as in a terminal. A command in the background may ignore Ctrl-C."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def child():
    """Start a process in DeferredSignals. `ask()` is what it has heard; `ignored` signals are so from its start."""
    processes = []

    def start(ignored=None):
        ignoring = None if ignored is None else lambda: signal.signal(ignored, signal.SIG_IGN)
        process = start_python("-c", PROGRAM, stdin=subprocess.PIPE, preexec_fn=ignoring)
        processes.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()


def ask(process):
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.mark.parametrize("name", NAMES)
def test_where_nothing_can_be_lost_a_signal_raises(name):
    with JobSignals() as signals:
        with pytest.raises(StoppedBySignal, match=name):
            send(signal.Signals[name])
        assert signals.received.name == name
        assert DeferredSignals().requested, "should something have swallowed the exception"


@pytest.mark.parametrize("name", NAMES)
def test_in_an_interrupt_a_signal_only_asks(name, capfd):
    with JobSignals():
        with DeferredSignals() as interrupt:
            assert not interrupt.requested
            send(signal.Signals[name])
            assert interrupt.requested
        assert DeferredSignals().requested
    assert capfd.readouterr().err == "\nstopping: saving what is done (a second Ctrl-C or signal stops at once)\n"


def test_after_an_interrupt_a_signal_raises_again():
    with JobSignals():
        with DeferredSignals():
            pass
        with pytest.raises(StoppedBySignal):
            send(signal.SIGTERM)


def test_after_the_job_all_is_as_before():
    before = [signal.getsignal(number) for number in SIGNALS]
    with JobSignals(), DeferredSignals():
        send(signal.SIGTERM)
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_terminal_may_close_after_the_job():
    with JobSignals(), DeferredSignals():
        send(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


@pytest.mark.parametrize("name", [name for name in NAMES if name != "SIGHUP"])
@pytest.mark.parametrize("first", ["SIGHUP", "SIGTERM"])
def test_a_second_signal_ends_at_once(child, first, name):
    process = child()
    process.send_signal(signal.Signals[first])
    assert ask(process) == "requested"
    process.send_signal(signal.Signals[name])
    process.communicate(timeout=20)
    assert process.returncode == -signal.Signals[name]


@pytest.mark.parametrize(("first", "second"), [(a, b) for a in NAMES for b in NAMES if a != b])
def test_signals_that_come_together_count_as_one(child, first, second):
    process = child()
    process.send_signal(signal.Signals[first])
    time.sleep(0.001)
    process.send_signal(signal.Signals[second])
    assert ask(process) == "requested"
    assert process.communicate(timeout=20)[1].count("stopping") == 1
    assert process.returncode == 0


@pytest.mark.parametrize("first", NAMES)
def test_a_terminal_that_closes_says_so_twice(child, first):
    process = child()
    for name in (first, "SIGHUP"):
        process.send_signal(signal.Signals[name])
        assert ask(process) == "requested"
    process.communicate(timeout=20)
    assert process.returncode == 0


def test_a_terminal_that_is_gone_takes_no_notice(child):
    process = child()
    process.stderr.close()
    process.send_signal(signal.SIGHUP)
    assert ask(process) == "requested"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_ignored_stays_ignored(child, name):
    process = child(ignored=signal.Signals[name])
    process.send_signal(signal.Signals[name])
    assert ask(process) == "nothing"
    process.communicate(timeout=20)
    assert process.returncode == 0


def test_a_job_in_another_thread_gets_no_signals():
    def job():
        with JobSignals(), DeferredSignals() as interrupt:
            return interrupt.requested

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(job).result() is False
