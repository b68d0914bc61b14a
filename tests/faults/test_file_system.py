"""A death or an error at each file-system call of a save: the checkpoint before or the new one is there, whole."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from accumtrain.runs.checkpoint_store import CheckpointStore
from tests.faults.strace import CALLS, calls_in
from tests.manifests import FACTS

PROGRAM = Path(__file__).with_name("save_once.py")

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")


def traced(folder: Path, *options: str) -> subprocess.CompletedProcess:
    command = ["strace", "-e", f"trace={','.join(CALLS)},kill", *options, sys.executable, str(PROGRAM), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def calls_of_a_save(folder: Path) -> Iterator[tuple[str, int]]:
    """Each call of a save: its name, and its number among the calls of that name."""
    log = folder.with_suffix(".log")
    done = traced(folder, "-o", str(log))
    assert done.returncode == 0, done.stderr
    return calls_in(log, after_marker=True)


@pytest.fixture
def fresh(tmp_path):
    """Makes folders with a whole checkpoint of update 1."""

    def make(name: str) -> Path:
        folder = tmp_path / name
        store = CheckpointStore(folder)
        store.write(1, lambda prefix: Path(f"{prefix}.index").write_bytes(b"one"), lambda prefix: None, FACTS)
        return folder

    return make


def assert_one_is_whole(folder: Path, place: object) -> None:
    store = CheckpointStore(folder)
    store.sweep()
    found = store.newest_first()
    assert found, f"nothing left after {place}"
    for saved in found:
        saved.check()
    assert all(entry.name.startswith("step-") for entry in folder.iterdir()), place


@pytest.mark.slow
def test_a_death_at_each_call(fresh):
    calls = list(calls_of_a_save(fresh("counted")))
    assert len(calls) > 25
    for name, number in calls:
        folder = fresh(f"{name}-{number}")
        done = traced(folder, "-o", "/dev/null", "-e", f"inject={name}:signal=KILL:when={number}")
        assert done.returncode != 0, (name, number)
        assert_one_is_whole(folder, (name, number))


@pytest.mark.slow
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_an_error_of_each_call(fresh, error):
    for name, number in calls_of_a_save(fresh("counted")):
        folder = fresh(f"{name}-{number}")
        done = traced(folder, "-o", "/dev/null", "-e", f"inject={name}:error={error}:when={number}")
        assert "Traceback" not in done.stderr, (name, number, done.stderr)
        assert_one_is_whole(folder, (name, number))
