"""A value of the environment reaches the job, and nothing that is written."""

import json

import pytest
from omegaconf import OmegaConf

from accumtrain.config.read import from_mapping
from accumtrain.runs.contents import read_config
from tests.begun import save_config

FOLDER = ("data=folder", "data.path='/data/${oc.env:TOKEN}'")


@pytest.fixture(autouse=True)
def token(monkeypatch):
    monkeypatch.setenv("TOKEN", "s3cret")


@pytest.fixture
def train(fake_job):
    """A job that saves its configuration."""
    return fake_job(lambda config: save_config(config) or {"step": 1})


def written(folder):
    """The names and the content of all files."""
    return "\n".join(
        f"{file} {file.read_text() if file.is_file() else ''}" for file in folder.rglob("*") if file.name != ".lock"
    )


@pytest.mark.parametrize("mode", ["", "-m"])
def test_a_secret_is_not_written(mode, command, train, tmp_path):
    answer = command(*filter(None, [mode]), *FOLDER, "batch_size=32")
    assert answer.code == 0, answer.err
    (config,) = train
    assert config.data.path == "/data/s3cret"
    assert "s3cret" not in written(tmp_path) + answer.out + answer.err
    (file,) = tmp_path.glob("runs/*/config.yaml")
    assert OmegaConf.load(file)._get_node("data")._get_node("path")._value() == "/data/${oc.env:TOKEN}"
    assert from_mapping(read_config(file)) == config


def test_the_same_command_continues_whatever_the_secret_is(command, train, monkeypatch, tmp_path):
    assert command(*FOLDER).code == 0
    monkeypatch.setenv("TOKEN", "renewed")
    assert command(*FOLDER).code == 0
    assert len(list(tmp_path.glob("runs/*/config.yaml"))) == 1
    assert train[1].data.path == "/data/renewed"


@pytest.mark.parametrize("key", ["run.name", "data.train_split", "precision", "optim.name", "+optim.args.a"])
def test_what_must_be_written_down_is_not_read_from_the_environment(key, refused, seen):
    given = ["data=tfds", "data.name=cifar10", "optim=keras", "optim.name=Adam"]
    message = refused(*(each for each in given if not each.startswith(f"{key}=")), f"{key}=${{oc.env:TOKEN,float32}}")
    assert message.startswith(f"error: {key.lstrip('+')}=")
    assert seen == []
    if key != "precision":  # which is refused for its value
        assert "s3cret" not in message
        assert "let the shell put it in" in message


def test_a_sweep_sends_no_secret_to_its_children(monkeypatch, tmp_path):
    from accumtrain.cli.compose import plain_values
    from accumtrain.cli.sweep.job import run_in_child
    from accumtrain.process import child

    sent = []

    def show(command, request, *_):
        sent.append(json.dumps(request))
        return child.ChildResult(0, {}, "")

    monkeypatch.setattr(child, "stream_child", show)
    composed = OmegaConf.create({"data": {"path": "${oc.env:TOKEN}"}, "batch_size": "${run.seed}", "run": {"seed": 3}})
    run_in_child(tmp_path, 0, plain_values(composed), [])
    assert "s3cret" not in sent[0]
    assert json.loads(sent[0])["values"]["batch_size"] == 3
