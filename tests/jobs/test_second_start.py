"""The same training twice, in processes of its own: the second traces nothing and leaves the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from accumtrain.runs.files import read_json

COMMAND = ("model=lenet5", "train.steps=4", "batch_size=32", "accum.steps=2", "log.images=0", "eval.every=4")


def train(folder, name, cache, *others):
    """Runs the command. Returns the bytes of its last checkpoint, and what it printed."""
    command = [sys.executable, "-m", "accumtrain", *COMMAND, f"run.dir={folder}", f"run.name={name}", *others]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert read_json(folder / name / "summary.json")["step"] == 4
    (state,) = (folder / name / "checkpoints" / "step-4").glob("state.data*")
    return state.read_bytes(), done.stdout


def kept(cache):
    return {path: (path.read_bytes(), path.stat().st_ino) for path in (cache / "accumtrain" / "graphs").iterdir()}


@pytest.mark.slow
def test_a_second_process_takes_the_graphs_of_the_first(tmp_path):
    cache, none = tmp_path / "cache", tmp_path / "file"
    none.write_text("")
    plain, _ = train(tmp_path, "plain", none)  # where no folder can be made
    first, _ = train(tmp_path, "first", cache)
    files = kept(cache)
    assert len(files) >= 2
    second, _ = train(tmp_path, "second", cache)
    assert kept(cache) == files  # none was written again
    assert plain == first == second

    for path in files:
        path.write_bytes(path.read_bytes()[:-10])
    third, printed = train(tmp_path, "third", cache)
    repaired = kept(cache)
    fourth, quiet = train(tmp_path, "fourth", cache)
    assert "is damaged" in printed
    assert "is damaged" not in quiet
    assert third == fourth == plain
    assert repaired == kept(cache)
    assert repaired.keys() == files.keys()

    train(tmp_path, "other", cache, "optim.lr=0.01")
    assert len(kept(cache)) == 2 * len(files)


@pytest.mark.slow
def test_two_processes_at_once(tmp_path):
    cache = tmp_path / "cache"
    command = [sys.executable, "-m", "accumtrain", *COMMAND, f"run.dir={tmp_path}"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    processes = [subprocess.Popen([*command, f"run.name=run{number}"], env=environment) for number in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    found = kept(cache)
    assert found
    assert all(path.suffix == ".graph" and not path.name.startswith(".") for path in found)
    state, _ = train(tmp_path, "after", cache)
    assert kept(cache) == found
    for number in range(2):
        (saved,) = (tmp_path / f"run{number}" / "checkpoints" / "step-4").glob("state.data*")
        assert saved.read_bytes() == state
