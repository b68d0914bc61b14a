"""A job in a process of its own: what it gets, what it prints, and the ways it ends."""

import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

from accumtrain.cli.sweep import folder as sweep_folder
from accumtrain.cli.sweep import job as sweep
from accumtrain.cli.sweep.table import JobOutcome
from accumtrain.config.read import to_mapping
from tests.programs import eventually, start_python, with_path

CHILD = """
import os, signal, sys, time
from pathlib import Path
from types import SimpleNamespace
from accumtrain.errors import DataError, Preempted
from accumtrain.process import child, environment
environment.prepare = lambda device, **_: None
def train(config):
{body}
sys.modules["accumtrain.train.train"] = SimpleNamespace(train=train)
sys.exit(child.serve_request(Path(sys.argv[1])))
"""
SAVES = """
def stop(number, frame):
    raise Preempted("saved")
signal.signal(signal.SIGTERM, stop)
print("batch", config.batch_size, flush=True)
Path("ready").touch()
time.sleep(60)
"""
WAITS = "Path('ready').touch(); time.sleep(60)"


def program(body):
    return CHILD.format(body=textwrap.indent(body, "    "))


@pytest.fixture
def run(monkeypatch, compose, tmp_path):
    """Run lines of Python in the place of a job, in an empty folder. Return its outcome."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", with_path()["PYTHONPATH"])
    (tmp_path / "sweep").mkdir()

    def job(body, goes_on=lambda: True, batch_size=32):
        monkeypatch.setattr(sweep, "child_command", lambda: [sys.executable, "-c", program(body)])
        monkeypatch.setattr(sweep_folder, "is_running", lambda folder: goes_on())
        values = to_mapping(compose("run.name=mine")) | {"batch_size": batch_size}
        return sweep.run_in_child(tmp_path / "sweep", 6, values, [f"batch_size={batch_size}"])

    return job


def test_a_job_says_and_returns_what_it_does(run, capfd):
    outcome = run("print('batch', config.batch_size, end='\\n\\n'); raise DataError('no')")
    assert outcome == JobOutcome(
        ["batch_size=32"], "train", "runs/mine/summary.json", None, 3, data="digits", ranked_by="accuracy"
    )
    assert capfd.readouterr() == ("run 7 | batch 32\n\n", "run 7 | error: no\n")


def test_a_job_leaves_its_result(run):
    outcome = run("return {'step': 7}")
    assert (outcome.status, outcome.result) == ("completed", {"step": 7})


def test_the_command_of_a_job_is_that_of_its_run(run, capfd):
    run("print(*sys.argv[1:])")
    assert capfd.readouterr().out == "run 7 | batch_size=32\n"


def test_a_job_that_is_refused(run, capfd):
    assert run("pass", batch_size=0) == JobOutcome(["batch_size=0"], ended_with=2)
    assert capfd.readouterr().err.startswith("run 7 | error: batch_size=0: must be at least 1")


@pytest.mark.parametrize(("number", "name"), [(9, "SIGKILL"), (40, "signal 40")])
def test_a_job_that_is_killed_is_told_of(run, capfd, number, name):
    assert run(f"os.kill(os.getpid(), {number})").ended_with == 128 + number
    assert capfd.readouterr().err.startswith(f"error: run 7 was killed by {name}; if the system did so")


def test_a_job_is_known_of_as_long_as_it_runs(run, tmp_path):
    seen = []

    def goes_on():
        seen.extend(sweep_folder.read_outcomes(tmp_path / "sweep"))
        return not (tmp_path / "ready").exists()

    run(WAITS, goes_on)
    assert seen[0] == JobOutcome(["batch_size=32"]), "before it has read its configuration"
    assert seen[-1] == JobOutcome(
        ["batch_size=32"], "train", "runs/mine/summary.json", data="digits", ranked_by="accuracy"
    )


def test_a_job_that_is_not_needed_any_more_saves_its_state(run, capfd, tmp_path):
    assert run(SAVES, lambda: not (tmp_path / "ready").exists()).ended_with == 75
    assert capfd.readouterr().out == "run 7 | batch 32\nrun 7 | saved\n"


@pytest.mark.parametrize("begun", [True, False])
def test_a_job_that_is_stopped_before_it_has_a_state(run, tmp_path, begun):
    assert run(WAITS, lambda: begun and not (tmp_path / "ready").exists()).ended_with == 75


@pytest.mark.slow
def test_a_job_ends_with_the_process_that_waits_for_it(tmp_path, compose):
    values = to_mapping(compose("run.name=mine"))
    parent = (
        "import sys\n"
        "from pathlib import Path\n"
        "from accumtrain.cli.sweep import folder as sweep_folder, job as sweep\n"
        "sweep_folder.is_running = lambda folder: True\n"
        f"sweep.child_command = lambda: [sys.executable, '-c', {program(SAVES)!r}]\n"
        f"sweep.run_in_child(Path('sweep'), 6, {values!r}, [])"
    )
    (tmp_path / "sweep").mkdir()
    waits = start_python("-c", parent, cwd=tmp_path, env=with_path(TMPDIR=str(tmp_path)), stdout=subprocess.DEVNULL)
    assert eventually((tmp_path / "ready").exists)
    (child,) = psutil.Process(waits.pid).children()
    waits.kill()
    waits.communicate()
    gone, _ = psutil.wait_procs([child], timeout=20)
    assert gone or child.status() == psutil.STATUS_ZOMBIE
    assert not list(tmp_path.glob("accumtrain-job-*")), "nobody else would remove it"


@pytest.mark.parametrize(
    ("name", "given", "threads"),
    [("LokyProcess-1", {}, "3"), ("LokyProcess-1", {sweep.THREADS: "2"}, "2"), ("MainProcess", {}, None)],
)
def test_jobs_side_by_side_share_the_cores(run, monkeypatch, capfd, name, given, threads):
    monkeypatch.delenv(sweep.THREADS, raising=False)
    for key, value in {sweep.CORES: "3", **given}.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(sweep.current_process(), "_name", name)
    assert run(f"print(os.environ.get('{sweep.THREADS}'))").ended_with == 0
    assert capfd.readouterr().out == f"run 7 | {threads}\n"


def test_ctrl_c_reaches_a_job_whose_launcher_has_blocked_it(run, capfd):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        run("print(signal.pthread_sigmask(signal.SIG_BLOCK, []))")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert capfd.readouterr().out == "run 7 | set()\n"
