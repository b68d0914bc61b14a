"""Sweeps by the launchers of plugins, from outside."""

import json
import os
import signal

import psutil
import pytest

from accumtrain.process.program import CHILD
from tests.programs import eventually, start_python

pytestmark = pytest.mark.launchers

PROGRAM = """
import sys
from accumtrain.cli.main import main
try:
    main()
finally:
    assert "tensorflow" not in sys.modules
"""
JOBLIB = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")


@pytest.fixture
def sweep(tmp_path):
    """Start `accumtrain -m model=lenet5 ...` in an empty folder, in a group of processes of its own."""

    def start(*arguments):
        return start_python("-c", PROGRAM, "-m", "model=lenet5", *arguments, cwd=tmp_path, start_new_session=True)

    return start


@pytest.fixture
def statuses(tmp_path):
    """Read the status of each value of a key from sweep.json."""

    def read(key="batch_size"):
        records = json.loads((tmp_path / "runs" / "sweep.json").read_text())
        return {dict(each.split("=") for each in record["overrides"])[key]: record["status"] for record in records}

    return read


@pytest.mark.slow
def test_jobs_that_fail_are_reported(sweep, statuses):
    command = sweep(*JOBLIB, "data=folder", "data.path=nowhere", "batch_size=32,33", "accum.steps=4")
    out, err = command.communicate()
    assert command.returncode == 3
    assert "Traceback" not in err
    assert "warning: run 2 of the sweep will be refused: batch_size=33 is not divisible" in err
    assert "run 1 | error: data.path=nowhere" in err
    assert "2 runs, best first" in out
    assert statuses() == {"32": "DataError", "33": "ConfigError"}


def test_a_cluster_that_is_not_there(sweep, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    command = sweep("hydra/launcher=submitit_slurm", "batch_size=32,64")
    _, err = command.communicate()
    assert command.returncode == 2
    assert err.startswith("error: the launcher or sweeper ended the sweep: Could not detect")
    assert err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [JOBLIB, ("hydra/launcher=submitit_local",)], ids=["joblib", "submitit"])
def test_each_job_has_a_process_of_its_own(sweep, statuses, tmp_path, launcher):
    """A memory limit holds for a process; so does what becomes of it."""
    command = sweep(*launcher, "device.memory_limit_mb=5,300", "accum.steps=1", "batch_size=2000", "train.steps=2")
    out, err = command.communicate()
    assert "2 runs, best first" in out
    assert statuses("device.memory_limit_mb") == {"5": "OutOfMemoryError", "300": "completed"}, err
    assert command.returncode == 6
    assert bool(list(tmp_path.glob("runs/.sweep-*/.submitit/*/*_log.out"))) == (launcher is not JOBLIB)


def processes_of_trainings(command, tmp_path):
    """Return the processes of a sweep when two of its runs train."""
    eventually(lambda: len(list(tmp_path.glob("runs/*/metrics.jsonl"))) == 2)
    return psutil.Process(command.pid).children(recursive=True)


def have_ended(processes, timeout):
    """Return whether processes end in time. A zombie is the system's to collect."""
    _, left = psutil.wait_procs(processes, timeout=timeout)
    return all(process.status() == psutil.STATUS_ZOMBIE for process in left)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "number", "to_all"),
    [
        (("hydra/launcher=joblib", "hydra.launcher.n_jobs=4"), signal.SIGINT, True),  # two processes are idle
        (JOBLIB, signal.SIGTERM, False),
        (JOBLIB, signal.SIGHUP, True),
        (JOBLIB, signal.SIGUSR1, False),
        (("hydra/launcher=submitit_local",), signal.SIGINT, True),
    ],
)
def test_a_stopped_sweep_saves_and_continues(sweep, statuses, tmp_path, launcher, number, to_all):
    endless = (*launcher, "batch_size=32,64", "train.steps=1000000")
    command = sweep(*endless)
    processes = processes_of_trainings(command, tmp_path)
    (os.killpg if to_all else os.kill)(command.pid, number)
    out, err = command.communicate(timeout=60)
    assert command.returncode == 75, err
    assert "the sweep was stopped; the same command continues it" in out
    assert statuses() == {"32": "Preempted", "64": "Preempted"}
    assert have_ended(processes, timeout=10)


@pytest.mark.slow
def test_the_processes_of_a_killed_sweep_end(sweep, tmp_path):
    command = sweep(*JOBLIB, "batch_size=32,64", "train.steps=1000000")
    processes = processes_of_trainings(command, tmp_path)
    command.kill()
    command.communicate()
    assert have_ended(processes, timeout=30)
    assert len(list(tmp_path.glob("runs/*/checkpoints/step-*"))) >= 2, "each job has saved its state"


@pytest.mark.slow
def test_a_job_that_is_killed_does_not_end_the_sweep(sweep, statuses, tmp_path):
    command = sweep(*JOBLIB, "batch_size=32,64,128", "train.epochs=20")
    job = next(process for process in processes_of_trainings(command, tmp_path) if CHILD in process.cmdline())
    job.kill()
    out, err = command.communicate(timeout=120)
    assert command.returncode == 137, err
    assert "was killed by SIGKILL" in err
    assert "3 runs, best first" in out
    assert sorted(statuses().values()) == ["SIGKILL", "completed", "completed"]
