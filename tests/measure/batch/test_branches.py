"""job=batch, whole: bits of a branch, the run that stays as it is, a stop and its continuation."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from accumtrain.runs.checkpoint_store import CheckpointStore
from tests.programs import eventually, run_python, start_python

SMALL = ("model=lenet5", "data=synthetic", "data.image_size=8", "data.train_examples=64", "data.test_examples=16")
RUN = (*SMALL, "optim=adam", "batch_size=8", "accum.steps=2", "schedule=cosine", "train.steps=6", "run.name=one")
JOB = ("job=batch", "run.name=one", "batch_test.batches=[4,16]", "batch_test.examples=32", "batch_test.seeds=1")


def digests(folder: Path) -> dict[str, str]:
    """The files of a folder, each with a digest of its content."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def state_after(folder: Path, step: int) -> dict[str, str]:
    """The checksums of the files of a checkpoint."""
    saved = {each.step: each for each in CheckpointStore(folder / "checkpoints").newest_first()}
    return {name: file["crc32c"] for name, file in saved[step].check()["files"].items()}


@pytest.fixture(scope="module")
def half_trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of which 3 of 6 updates are made, in runs/one."""
    folder = tmp_path_factory.mktemp("half")
    done = run_python("-m", "accumtrain", *RUN, f"run.dir={folder}/runs", "checkpoint.every=3")
    assert done.returncode == 0, done.stderr
    shutil.rmtree(folder / "runs/one/checkpoints/step-6")
    shutil.rmtree(folder / "runs/one/checkpoints/best")
    return folder


@pytest.fixture
def runs(half_trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(half_trained / "runs", tmp_path / "runs")
    return tmp_path / "runs"


def read(runs: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((runs / "trials/batch-one/batch.json").read_text())
    return found


def branch_folder(runs: Path, beginning: str) -> Path:
    (folder,) = (runs / "trials/batch-one").glob(f"{beginning}-*")
    return folder


@pytest.mark.slow
def test_a_branch_is_the_run_with_that_batch_to_the_bit(runs, tmp_path):
    before = digests(runs / "one")
    done = run_python("-m", "accumtrain", *JOB, "batch_test.seeds=2", f"run.dir={runs}")
    assert done.returncode == 0, done.stderr
    assert digests(runs / "one") == before
    found = read(runs)
    assert found["step"] == 3
    assert found["rate"] == pytest.approx(1e-3 * 0.5 * (1 + math.cos(0.6 * math.pi)))  # of update 4 of 6
    for row, branch in zip(found["batches"], found["branches"][::2], strict=True):
        batch, updates = row["batch"], row["updates"]
        for seed in (0, 1):
            other = tmp_path / f"other{batch}-{seed}"
            shutil.copytree(runs / "one", other / "one")
            keys = [f"batch_size={batch}", f"accum.steps={row['steps']}", f"optim.lr={row['rate']!r}"]
            keys += [f"optim.half_life={row['half_life']!r}", "schedule=constant", f"run.seed={seed}"]
            keys += [f"train.steps={3 + updates}", "run.resume=force", "run.name=one", f"run.dir={other}"]
            continued = run_python("-m", "accumtrain", *keys)
            assert continued.returncode == 0, continued.stderr
            folder = branch_folder(runs, f"batch{batch}-seed{seed}")
            assert state_after(folder, 3 + updates) == state_after(other / "one", 3 + updates)
        assert branch["name"] == branch_folder(runs, f"batch{batch}-seed0").name


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_job_that_was_stopped_goes_on_where_it_was(number, runs):
    job = (*JOB[:2], "batch_test.batches=[8,4]", "batch_test.examples=4000", "batch_test.seeds=1", f"run.dir={runs}")
    before = digests(runs / "one")
    stopped = start_python("-m", "accumtrain", *job)
    assert eventually(lambda: [*runs.glob("trials/batch-one/batch4-*/checkpoints/step-[1-9][0-9]*")], 100)
    stopped.send_signal(number)
    out, err = stopped.communicate()
    assert stopped.returncode == (-number if number == signal.SIGKILL else 75), err
    assert ("run the same command again" in out) == (number == signal.SIGINT)
    first = branch_folder(runs, "batch8-seed0")
    cut = branch_folder(runs, "batch4-seed0")
    assert "completed" not in ((cut / "summary.json").read_text() if (cut / "summary.json").exists() else "")
    finished = digests(first)
    continued = run_python("-m", "accumtrain", *job)
    assert continued.returncode == 0, continued.stderr
    assert digests(first) == finished, "it is not made again"
    assert "1 of them has ended before" in continued.stdout
    assert int(re.findall(r"continuing after update (\d+)", (cut / "output.txt").read_text())[-1]) > 3
    assert [row["ended"] for row in read(runs)["batches"]] == ["completed"] * 2
    assert digests(runs / "one") == before


@pytest.mark.slow
def test_without_a_run_the_job_makes_a_beginning_and_a_branch_may_diverge(tmp_path):
    keys = (*SMALL, "job=batch", "optim=sgd", "batch_size=8", "run.name=one", f"run.dir={tmp_path}/runs")
    options = ("batch_test.warmup=4", "batch_test.batches=[8,16]", "batch_test.rates=[1,1e6]", "batch_test.seeds=1")
    done = run_python("-m", "accumtrain", *keys, *options)
    assert done.returncode == 0, done.stderr
    assert "there is no run yet: 4 updates are made first, at batch_size=8" in done.stdout
    found = read(tmp_path / "runs")
    assert (found["step"], found["rate"], found["examples"]) == (4, 0.1, 64)
    assert [row["ended"] for row in found["batches"]] == ["completed", "diverged"] * 2
    assert [row["loss"] is None for row in found["batches"]] == [False, True] * 2
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [".accumtrain", "trials"]
