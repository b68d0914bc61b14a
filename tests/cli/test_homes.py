"""~ on the command line, which no shell expands behind `key=` with a dot in it, and which Hydra's grammar refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from accumtrain.cli.overrides import for_hydra
from tests.begun import leave_checkpoint, save_config


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("written", "quoted"),
    [
        ("run.dir=~/runs", "run.dir='~/runs'"),
        ("data.path=~", "data.path='~'"),
        ("data.path=~/a b,~c/d,e", "data.path='~/a b','~c/d',e"),
        ("data.path='~/a'", "data.path='~/a'"),
        ('data.path="~/a"', 'data.path="~/a"'),
        ("data.path=a~b", "data.path='a~b'"),
        ("model.freeze=[~a]", "model.freeze=['~a']"),
        ("~train.steps", "~train.steps"),
    ],
)
def test_it_is_quoted_for_hydra(written, quoted):
    assert for_hydra([written]) == [quoted]


@pytest.mark.parametrize("path", ["~/photos", "'~/photos'"])
def test_a_path_below_home(command, seen, home, path):
    assert command("data=folder", f"data.path={path}", "run.dir=~/all runs").code == 0
    (config,) = seen
    assert (config.data.path, config.run.dir) == (f"{home}/photos", f"{home}/all runs")
    assert config.data.label == "photos"


def test_a_sweep_over_folders_writes_below_home(command, fake_job, home):
    seen = fake_job(lambda config: {"status": "completed"})
    assert command("-m", "data=folder", "data.path=~/a,~/b", "run.dir=~/runs").code == 0
    assert [config.data.path for config in seen] == [f"{home}/a", f"{home}/b"]
    assert (home / "runs" / "sweep.json").exists()


def test_a_job_finds_the_run_below_home(command, fake_job, home):
    def train(config):
        save_config(config)
        leave_checkpoint(config)

    fake_job(train)
    assert command("run.name=x", "run.dir=~/runs", "model=lenet5", "data.mean=[0.4]").code == 0
    seen = fake_job(lambda config: None, "evaluate")
    assert command("job=evaluate", "run.name=x", "run.dir=~/runs").code == 0
    assert seen[0].data.mean == [0.4]


def test_the_home_of_nobody_is_a_mistake(refused):
    said = "run.dir=~no-such-user/x: there is no home directory of that name"
    assert said in refused("run.dir=~no-such-user/x")
