"""The scripts of examples/slurm on a SLURM of two nodes, which `make slurm` starts around these tests."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "slurm"
PROGRAM = Path(sys.executable).with_name("accumtrain")
SMALL = ("model=lenet5", "optim=sgd", "optim.lr=0.01", "batch_size=32", "eval.every=1000")
PATIENCE = 600  # seconds for what the cluster is waited for; it lets two minutes pass before a requeued job starts
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of every job, whose environment has accumtrain."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def sbatch(script: str, *arguments: str, options: tuple[str, ...] = ()) -> str:
    """Submits a script of the examples. Returns the number of the job."""
    command = ["sbatch", "--parsable", *options, str(SCRIPTS / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def state_of(job: str) -> dict[str, str]:
    """The fields that scontrol shows of a job."""
    shown = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, check=True).stdout
    return dict(re.findall(r"(\w+)=(\S*)", shown))


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {PATIENCE} s"
        time.sleep(0.2)


def ended(job: str) -> tuple[str, str]:
    """Waits for the end of a job. Returns its state, such as COMPLETED, and its exit code."""
    wait_for(lambda: state_of(job)["JobState"] in ENDED, f"the end of job {job}")
    state = state_of(job)
    return state["JobState"], state["ExitCode"]


def log(job: str) -> str:
    return Path(f"accumtrain-{job}.log").read_text()


def saved(name: str, least: int) -> Callable[[], bool]:
    """Whether the run has a checkpoint of `least` updates or more."""
    folders = Path("runs", name, "checkpoints")
    return lambda: any(int(path.name[5:]) >= least for path in folders.glob("step-*"))


def weights(name: str, step: int) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(f"runs/{name}/checkpoints/step-{step}/state")
    return {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map() if key.startswith("model/")}


def assert_same_bits(one: str, other: str, step: int) -> None:
    ours, theirs = weights(one, step), weights(other, step)
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[key], theirs[key]) for key in ours)


def test_two_jobs_of_two_workers_share_the_nodes():
    steps = ("train.steps=40", "accum.steps=2")
    jobs = [sbatch("workers.sbatch", *SMALL, *steps, f"run.name={name}") for name in ("one", "other")]
    for job in jobs:
        assert ended(job) == ("COMPLETED", "0:0"), log(job)
        assert "32 = micro-batch 8 x 2 steps x 2 replicas" in log(job)
    assert_same_bits("one", "other", 40)


@pytest.mark.parametrize("script", ["train.sbatch", "workers.sbatch"])
def test_a_signal_requeues_the_job_and_the_run_continues_to_the_bit(script):
    steps = "train.steps=600"
    assert ended(sbatch(script, *SMALL, steps, "run.name=whole")) == ("COMPLETED", "0:0")
    job = sbatch(script, *SMALL, steps, "run.name=stopped", "checkpoint.every=20")
    wait_for(saved("stopped", 20), "a checkpoint")
    subprocess.run(["scancel", "--signal=USR1", job], check=True)  # as --signal does before the time is over
    wait_for(lambda: state_of(job)["JobState"] == "PENDING", "the requeued job")
    assert "run the same command again to continue" in log(job)
    assert ended(job) == ("COMPLETED", "0:0"), log(job)
    assert state_of(job)["Restarts"] == "1"
    assert re.search(r"continuing after update \d+ of 600", log(job))
    assert_same_bits("whole", "stopped", 600)


def test_the_time_limit_sends_the_signal():
    options = ("--time=2", "--signal=USR1@60")
    job = sbatch("train.sbatch", *SMALL, "train.steps=1000000", "run.name=long", options=options)
    wait_for(lambda: state_of(job)["JobState"] == "PENDING" and state_of(job)["Restarts"] == "1", "the requeued job")
    subprocess.run(["scancel", job], check=True)
    assert json.loads(Path("runs/long/summary.json").read_text())["status"] == "preempted"


@pytest.mark.parametrize("script", ["train.sbatch", "workers.sbatch"])
def test_a_killed_job_continues_from_its_checkpoint_to_the_bit(script):
    steps = "train.steps=400"
    assert ended(sbatch(script, *SMALL, steps, "run.name=whole")) == ("COMPLETED", "0:0")
    job = sbatch(script, *SMALL, steps, "run.name=killed", "checkpoint.every=20")
    wait_for(saved("killed", 20), "a checkpoint")
    subprocess.run(["scancel", "--signal=KILL", job], check=True)
    assert ended(job)[0] == "CANCELLED", "a job that was killed is not requeued"
    again = sbatch(script, *SMALL, steps, "run.name=killed", "checkpoint.every=20")
    assert ended(again) == ("COMPLETED", "0:0"), log(again)
    assert re.search(r"continuing after update \d+ of 400", log(again))
    assert_same_bits("whole", "killed", 400)


def replace_program(folder: Path, script: str) -> None:
    """Puts a script in the place of accumtrain. The fixture restores the PATH."""
    program = folder / "bin" / "accumtrain"
    program.parent.mkdir()
    program.write_text(f"#!/bin/bash\n{script}\n")
    program.chmod(0o755)
    os.environ["PATH"] = f"{program.parent}{os.pathsep}{os.environ['PATH']}"


def test_a_worker_that_fails_by_itself_ends_the_job_with_its_code(folder):
    """The others end with 75 then, which is no reason to start all of them again."""
    fails = 'if [ "$SLURM_PROCID" = 1 ]; then set -- "$@" data=folder data.path=/nowhere; fi'
    replace_program(folder, f'{fails}\nexec {PROGRAM} "$@"')
    job = sbatch("workers.sbatch", *SMALL, "accum.steps=2", "train.steps=10", "run.name=alone")
    assert ended(job) == ("FAILED", "3:0"), log(job)
    assert state_of(job)["Restarts"] == "0"
    assert "/nowhere is not a directory" in log(job)
    assert not list(folder.glob(".accumtrain-*"))


@pytest.mark.parametrize("script", ["train.sbatch", "workers.sbatch"])
def test_srun_is_asked_for_the_processors_of_the_job(script, folder):
    """A cluster that binds tasks to processors binds them to one each otherwise. This one does not bind."""
    replace_program(folder, 'echo "a task of $SRUN_CPUS_PER_TASK"')
    job = sbatch(script, options=("--nodes=1", "--cpus-per-task=2"))
    assert ended(job) == ("COMPLETED", "0:0"), log(job)
    assert "a task of 2" in log(job)


def sweep(*overrides: str) -> subprocess.Popen[str]:
    launcher = ("hydra/launcher=submitit_slurm", "hydra.launcher.partition=all", "hydra.launcher.mem_gb=null")
    command = [str(PROGRAM), "-m", *launcher, "hydra.launcher.timeout_min=20", *SMALL, *overrides]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def outcomes() -> list[tuple[str, int]]:
    return sorted((each["status"], each["exit_code"]) for each in json.loads(Path("runs/sweep.json").read_text()))


def test_a_sweep_whose_jobs_are_jobs_of_the_cluster():
    process = sweep("train.steps=5", "accum.steps=2,4,5")
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2, out
    assert outcomes() == [("ConfigError", 2), ("completed", 0), ("completed", 0)], out
    hosts = {json.loads(file.read_text())["provenance"]["host"] for file in Path("runs").glob("*/summary.json")}
    assert hosts <= {"node1", "node2"}


def test_a_sweep_that_is_stopped_saves_every_job_and_the_same_command_continues_it():
    swept = ("train.steps=1500", "run.seed=0,1", "checkpoint.every=20")
    process = sweep(*swept)
    runs = Path("runs")
    wait_for(lambda: sum(saved(run.name, 20)() for run in runs.glob("[!.]*")) == 2, "a checkpoint of both jobs")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 75, out
    assert outcomes() == [("Preempted", 75), ("Preempted", 75)], out
    process = sweep(*swept)
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, out
    assert outcomes() == [("completed", 0), ("completed", 0)], out
