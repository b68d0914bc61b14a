"""Several worker processes on this machine train one model, and one of them speaks and writes."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from accumtrain.cli.workers import find_free_ports
from accumtrain.process import environment
from tests.train.conftest import assert_same_tensors, json_of, records_of, tensors_of

ROOT = Path(__file__).parents[2]
PROGRAM = ("-m", "accumtrain")
SMALL = ("model=lenet5", "optim=sgd", "optim.lr=0.01", "batch_size=32", "eval.every=1000", "log.every=1")


def in_folder(folder, *arguments, **others):
    variables = os.environ | {"PYTHONPATH": str(ROOT)} | others
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def workers(folder, count, name, *overrides):
    """Ended: exit code, stdout, stderr."""
    process = in_folder(folder, *PROGRAM, "--workers", str(count), *SMALL, f"run.name={name}", *overrides)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def two_addresses():
    addresses = ",".join(f"localhost:{port}" for port in find_free_ports(2))
    return "device=multiworker", f"device.workers=[{addresses}]"


def weights(folder, name, step):
    return tensors_of(folder / f"runs/{name}/checkpoints/step-{step}", "model/")


@pytest.fixture
def alone(command, monkeypatch):
    """Train in this process, in its `runs`."""
    monkeypatch.setattr(environment, "job_seconds", lambda: 0.0)

    def train(name, *overrides):
        answer = command(*SMALL, f"run.name={name}", *overrides)
        assert (answer.code, answer.err) == (0, "")

    return train


def test_two_workers_train_as_one_process(tmp_path, alone):
    code, out, err = workers(tmp_path, 2, "two", "train.steps=3", "accum.steps=2")
    assert (code, err) == (0, "")
    assert out.count("accumtrain lenet5") == 1, "the chief alone prints"
    assert "32 = micro-batch 8 x 2 steps x 2 replicas" in out
    alone("one", "train.steps=3", "accum.steps=4")
    assert [record["step"] for record in records_of(tmp_path / "runs/two")] == [1, 2, 3, 3, 3]
    assert json_of(tmp_path / "runs/two")["replicas"] == 2
    ours, theirs = weights(tmp_path, "two", 3), weights(tmp_path, "one", 3)
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        np.testing.assert_allclose(value, theirs[key], rtol=1e-5, atol=1e-6)


def threads_of(process):
    """The number of threads of each child process, in the order of their starts; fewer where one has ended."""
    children = psutil.Process(process.pid).children()
    return [child.num_threads() for child in children if child.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_workers_keep_their_number_of_threads_and_end_at_once(tmp_path):
    counts, printed = [], 0.0
    with in_folder(tmp_path, *PROGRAM, "--workers", "2", *SMALL, "run.name=two", "train.steps=400") as process:
        for line in process.stdout:
            if re.match(r"epoch \d+/\d+  update [1-4]\d\d/400 ", line):
                counts.append(threads_of(process))
            if " s in all" in line:
                printed = time.monotonic()
        assert process.wait(timeout=60) == 0
    assert time.monotonic() - printed < 10, "it was 20 s and more"
    assert len(counts) > 200
    for ours in zip(*(each for each in counts if len(each) == 2), strict=True):
        assert max(ours) - min(ours) < 40, "some of TensorFlow's pools grow and shrink"


@pytest.mark.slow
def test_two_workers_choose_the_kernels_of_one_process(tmp_path, monkeypatch):
    """So that either goes on with the bits of the other. The chief alone says it."""
    for variable in (environment.ONEDNN, environment.KERNELS_16BIT):
        monkeypatch.delenv(variable, raising=False)
    one = in_folder(tmp_path, *PROGRAM, *SMALL, "run.name=one", "train.steps=1", "precision=bfloat16")
    alone, err = one.communicate(timeout=120)
    assert one.returncode == 0, err
    code, together, err = workers(tmp_path, 2, "two", "train.steps=1", "precision=bfloat16")
    assert code == 0, err
    said = [[line for line in out.splitlines() if "kernels are used" in line] for out in (alone, together)]
    assert said[0] == said[1]
    assert json_of(tmp_path / "runs/two")["step"] == 1


@pytest.mark.slow
def test_a_signal_to_one_worker_stops_all_after_the_same_update(tmp_path):
    process = in_folder(tmp_path, *PROGRAM, "--workers", "2", *SMALL, "run.name=stopped", "train.steps=100000")
    wait_for(tmp_path / "runs/stopped/metrics.jsonl")
    (_, second) = children_of(process.pid)
    os.kill(second, signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    assert "run the same command again to continue" in out
    step = json_of(tmp_path / "runs/stopped")["step"]
    code, out, _ = workers(tmp_path, 2, "stopped", f"train.steps={step + 2}")
    assert code == 0
    assert f"continuing after update {step} of {step + 2}" in out


@pytest.mark.slow
def test_workers_that_do_not_share_the_folder_of_the_run(tmp_path, alone):
    here, there = tmp_path, tmp_path / "there"
    there.mkdir()
    alone("apart", "train.steps=2")
    together = (*two_addresses(), "run.name=apart", "train.steps=4", *SMALL)
    chief, other = (
        in_folder(folder, *PROGRAM, *together, f"device.index={index}") for index, folder in enumerate((here, there))
    )
    errors = [process.communicate(timeout=60)[1] for process in (chief, other)]
    assert [chief.returncode, other.returncode] == [5, 5], errors
    assert "read the state after update 2" in errors[0]
    assert "read the state after update 0" in errors[1]
    assert all("run.dir must be a folder that all workers share" in error for error in errors)


@pytest.mark.slow
def test_all_workers_take_the_accum_steps_of_the_one_with_the_least_memory(tmp_path):
    images = ("data=synthetic", "data.image_size=64", "data.train_examples=64", "data.test_examples=8")
    together = (*two_addresses(), *SMALL, *images)
    auto = ("accum.steps=auto", "run.name=auto", "train.steps=2")
    limits = (1000, 16)  # MB; a probe is a worker alone, so it leaves out what the reduction takes
    processes = [
        in_folder(
            tmp_path, *PROGRAM, *together, *auto, f"device.index={index}", f"device.memory_limit_mb={limit}",
            TF_ENABLE_ONEDNN_OPTS="1",  # the other kernels take 33 MB whatever the micro-batch
        )
        for index, limit in enumerate(limits)
    ]  # fmt: skip
    ended = [(*process.communicate(timeout=500), process.returncode) for process in processes]
    assert [code for *_, code in ended] == [0, 0], ended
    (out, _, _), (silent, _, _) = ended
    assert silent == ""
    assert "accum.steps=1: micro-batch 16" in out, "what the chief has found"
    (needed,) = re.findall(r"accum.steps=(\d+), which worker 1 needs", out)
    assert json_of(tmp_path / "runs/auto")["accum_steps"] == int(needed) > 1


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_worker_ends_the_other_and_the_run_continues_to_the_bit(tmp_path, victim):
    long = ("train.steps=400", "checkpoint.every=20")
    assert workers(tmp_path, 2, "whole", *long)[0] == 0
    with in_folder(tmp_path, *PROGRAM, "--workers", "2", *SMALL, "run.name=killed", *long) as process:
        wait_for(tmp_path / "runs/killed/checkpoints/step-40")
        os.kill(children_of(process.pid)[victim], signal.SIGKILL)
        _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "another worker went away" in err
    assert workers(tmp_path, 2, "killed", *long)[0] == 0
    assert_same_tensors(weights(tmp_path, "killed", 400), weights(tmp_path, "whole", 400))


def wait_for(path):
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


def children_of(parent):
    """The numbers of the processes that a process has started, in order."""
    return sorted(map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split()))
