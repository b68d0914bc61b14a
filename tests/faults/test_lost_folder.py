"""A run's folder that this user may not read, or that is moved or removed while its run trains: exit code 5."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from accumtrain.dispatch import run
from accumtrain.engine.step import Step
from accumtrain.errors import CheckpointError

LENET = ("model=lenet5", "data=digits", "train.steps=3", "log.every=1", "checkpoint.every=1", "eval.every=3")
NOBODY = 65534


@contextmanager
def as_nobody() -> Iterator[None]:
    """Within this context permissions hold, also for root."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.fixture
def open_folder():
    """A folder that every user can reach."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("job", ["train", "evaluate", "info", "export"])
def test_a_folder_without_permissions_is_named(command, monkeypatch, open_folder, job):
    monkeypatch.chdir(open_folder)
    run_folder = open_folder / "one"
    (run_folder / "checkpoints/step-1").mkdir(parents=True)
    (run_folder / "config.yaml").touch()
    run_folder.chmod(0o000)
    with as_nobody():
        answer = command(f"job={job}", "model=lenet5", f"run.dir={open_folder}", "run.name=one")
    run_folder.chmod(0o700)
    assert answer.code == 5, answer
    assert str(run_folder) in answer.err
    assert "give this user access" in answer.err


def rename(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def replace(folder: Path) -> None:
    rename(folder)
    folder.mkdir()


@pytest.mark.slow
@pytest.mark.parametrize("happens", [rename, shutil.rmtree, replace])
@pytest.mark.parametrize("update", [1, *(pytest.param(later, marks=pytest.mark.slow) for later in (2, 3))])
def test_a_folder_that_is_lost_while_its_run_trains(compose, monkeypatch, tmp_path, happens, update):
    folder = tmp_path / "runs/one"
    commit, commits = Step.commit, []

    def lost(self, **keywords):
        commits.append(1)
        if len(commits) == update:
            happens(folder)
        return commit(self, **keywords)

    monkeypatch.setattr(Step, "commit", lost)
    monkeypatch.setattr(Step, "updates", None)  # each update is a call of its own
    with pytest.raises(CheckpointError) as raised:
        run(compose(*LENET, "debug.eager=true", f"run.dir={tmp_path}/runs", "run.name=one"))
    assert str(folder) in str(raised.value)
    assert not folder.exists() or not list(folder.iterdir()), "nothing is made anew"
