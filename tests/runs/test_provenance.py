"""The origin of a run in its summary."""

import json
import subprocess
import sys
from datetime import datetime, timezone

import pytest

from accumtrain.runs import provenance as module
from accumtrain.runs.provenance import provenance
from accumtrain.version import __version__


def git(folder, *arguments):
    identity = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    return tmp_path


@pytest.fixture
def repository(folder):
    git(folder, "init", "--quiet")
    (folder / "mine.py").write_text("1\n")
    git(folder, "add", "mine.py")
    git(folder, "commit", "--quiet", "-m", "first")
    git(folder, "tag", "v1")
    return folder


def test_all_of_it_can_be_written(folder, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["accumtrain", "data.path=${oc.env:DATA}"])
    known = json.loads(json.dumps(provenance("CPU, 2 cores")))
    assert known["command"] == ["accumtrain", "data.path=${oc.env:DATA}"]
    assert known["versions"]["accumtrain"] == __version__
    assert all(known["versions"].values())
    assert (known["device"], known["git"]) == ("CPU, 2 cores", None)
    assert known["host"]
    assert datetime.fromisoformat(known["started"]) <= datetime.now(timezone.utc)
    assert known["cpu"]["model"]


def test_no_git(repository, monkeypatch):
    monkeypatch.setenv("PATH", str(repository))
    assert provenance("")["git"] is None


def test_a_commit_as_it_is_and_changed(repository):
    commit = git(repository, "rev-parse", "HEAD")
    (repository / "runs").mkdir()
    (repository / "runs" / "summary.json").write_text("{}")
    assert provenance("")["git"] == {"commit": commit, "dirty": False}, "what a run writes is no change"
    (repository / "mine.py").write_text("2\n")
    assert provenance("")["git"] == {"commit": commit, "dirty": True}


def test_no_monitor_of_the_repository_runs(repository):
    (repository / "hook").write_text("#!/bin/sh\ntouch ran\n")
    (repository / "hook").chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(repository / "hook"))
    assert provenance("")["git"] is not None
    assert not (repository / "ran").exists()


def test_a_version_under_another_name(monkeypatch):
    monkeypatch.setattr(module, "PACKAGES", ("no-such-package", "json"))
    monkeypatch.setattr(json, "__version__", "2.0.9", raising=False)
    versions = provenance("")["versions"]
    assert (versions["no-such-package"], versions["json"]) == (None, "2.0.9")
