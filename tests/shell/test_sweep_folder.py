"""The folder of a sweep, and the outcomes that jobs leave in it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from accumtrain.errors import ConfigError
from accumtrain.shell import sweep_folder as folder
from accumtrain.shell.job_outcome import Outcome


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv(folder.VARIABLE, "")  # so that what is set is undone


def outcome(ended_with, job="train", path="run"):
    return Outcome(["batch_size=32"], path, job, ended_with)


def test_outcomes_come_back_in_the_order_of_the_jobs(tmp_path):
    with folder.opened(tmp_path / "runs") as place:
        assert os.environ[folder.VARIABLE] == str(place)
        folder.leave(place, 10, outcome(3))
        folder.leave(place, 2, outcome(None))
        assert folder.collect(place) == [outcome(None), outcome(3)]
        folder.leave(place, 2, outcome(0))
        assert folder.collect(place) == [outcome(0), outcome(3)]
    assert list((tmp_path / "runs").iterdir()) == []


def test_jobs_are_wanted_until_the_end(tmp_path):
    with folder.opened(tmp_path) as place:
        assert folder.wanted(place)
        folder.end(place)
        assert not folder.wanted(place)
    assert not folder.wanted(place)


def test_jobs_are_not_wanted_by_a_command_that_is_gone(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with folder.opened(tmp_path) as place:
        (place / folder.WANTED).write_text(f"{socket.gethostname()} {gone.pid}")
        assert not folder.wanted(place)
        (place / folder.WANTED).write_text(f"another-{socket.gethostname()} {gone.pid}")
        assert folder.wanted(place), "what runs on another machine can't be seen from here"


def test_logs_of_a_launcher_stay(tmp_path, capsys):
    with folder.opened(tmp_path) as place:
        (place / ".submitit").mkdir()
        folder.leave(place, 0, outcome(0))
    assert [each.name for each in place.iterdir()] == [".submitit"]
    assert str(place) in capsys.readouterr().out


def test_run_dir_that_is_a_file(tmp_path):
    (tmp_path / "runs").write_text("")
    with (
        pytest.raises(ConfigError, match=r"runs can't be used: File exists; choose another one"),
        folder.opened(tmp_path / "runs"),
    ):
        pass


@pytest.mark.parametrize(
    ("ended_with", "status", "exit_code"),
    [
        (0, "completed", 0),
        (1, "bug", 1),
        (4, "DivergedError", 4),
        (130, "interrupted", 130),
        (137, "SIGKILL", 137),
        (None, "lost", 75),
    ],
)
def test_status(ended_with, status, exit_code):
    assert (outcome(ended_with).status, outcome(ended_with).exit_code) == (status, exit_code)


def test_objective(tmp_path):
    test = {"accuracy": 0.75, "loss": 1.5}
    (tmp_path / "summary.json").write_text(json.dumps({"test": test}))
    (tmp_path / "bench.json").write_text(json.dumps({"images_per_second": {"median": 640.0}}))
    assert outcome(0, path=str(tmp_path)).objective == 0.75
    assert outcome(0, "bench", str(tmp_path)).objective == 640.0
    assert outcome(4, path=str(tmp_path)).objective == 0.0, "it failed"
    assert outcome(2, path=None).objective == 0.0
