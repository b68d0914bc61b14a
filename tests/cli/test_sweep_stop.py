"""A signal ends a sweep only when the jobs that run have saved their state."""

import signal

import pytest

from accumtrain.process.signals import SIGNALS
from tests.programs import run_python

PROGRAM = """
import os, signal, sys, threading, time
from pathlib import Path
from accumtrain.cli.sweep import folder as sweep_folder
from accumtrain.cli.sweep.table import JobOutcome
from accumtrain.cli.sweep.folder import stop_on_signals
signal.signal(signal.SIGINT, signal.default_int_handler)
started = time.monotonic()

def job(folder):
    while sweep_folder.is_running(folder):
        time.sleep(0.01)
    time.sleep({saving})
    print("saved", flush=True)  # before its outcome is there, which the launcher waits for
    sweep_folder.write_outcome(folder, 0, JobOutcome([], ended_with=75))

with sweep_folder.open_sweep_folder(Path({runs!r})) as folder:
    sweep_folder.write_outcome(folder, 0, JobOutcome([]))
    try:
        with stop_on_signals(folder):
            running = threading.Thread(target=job, args=(folder,), daemon=True)
            running.start()  # here, or it would take SIGINT itself
            child = [sys.executable, "-c", "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))"]
            import subprocess; subprocess.run(child)
            for _ in range({times}):
                os.kill(os.getpid(), {number:d})
                while sweep_folder.is_running(folder):  # until it has arrived: two that wait are one
                    time.sleep(0.01)
            {launcher}
    except KeyboardInterrupt:
        print("stopped", flush=True)
    assert time.monotonic() - started < 30
"""


@pytest.fixture
def sweep(tmp_path):
    """Run a sweep of a launcher, which sends itself a signal so many times and whose job takes so long to save."""

    def run(launcher, number=signal.SIGHUP, times=0, saving=1, **options):
        program = PROGRAM.format(runs=str(tmp_path), launcher=launcher, number=number, times=times, saving=saving)
        done = run_python("-c", program, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines(), done.stderr

    return run


@pytest.mark.parametrize(
    ("number", "times", "saving", "said"),
    [
        *((number, 1, 1, ["saved", "stopped"]) for number in SIGNALS),
        *((number, 2, 40, ["stopped"]) for number in SIGNALS if number != signal.SIGHUP),
        (signal.SIGHUP, 2, 1, ["saved", "stopped"]),  # a closing terminal sends it twice
    ],
)
def test_stop(sweep, number, times, saving, said):
    (inherited, *rest), err = sweep("time.sleep(60)", number, times, saving)
    for name in ("SIGINT", "SIGQUIT", "SIGHUP"):
        assert name in inherited, "so that a terminal ends no process of the launcher"
    assert rest == said
    assert err == "\nstopping: running jobs save their state (a second Ctrl-C or signal stops at once)\n"


def test_a_launcher_that_returns_with_its_jobs_was_stopped_too(sweep):
    out, _ = sweep("running.join()", signal.SIGTERM, times=1)
    assert out[1:] == ["saved", "stopped"]


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGQUIT])
def test_signals_that_come_together_count_as_one(sweep, second):
    out, _ = sweep(f"os.kill(os.getpid(), signal.SIGINT); os.kill(os.getpid(), {second:d}); time.sleep(60)")
    assert out[1:] == ["saved", "stopped"]


def test_a_signal_that_is_ignored_stays_ignored(sweep):
    """SIGHUP is ignored under nohup. A signal that is blocked arrives all the same."""
    launcher = "os.kill(os.getpid(), signal.SIGHUP); time.sleep(1)"
    ignoring = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    (inherited,), err = sweep(launcher, saving=40, **ignoring)
    assert "SIGHUP" not in inherited
    assert err == ""
