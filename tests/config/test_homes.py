"""~ in every path of the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from accumtrain.config.keys import list_config_classes
from accumtrain.config.read import expand_homes, from_mapping, to_mapping
from accumtrain.config.schema import Config
from accumtrain.data.config import NpzConfig
from accumtrain.errors import ConfigError
from accumtrain.fields import LocalPath, constraints_of

PATHS = {
    "data.path",
    "data.val_path",
    "data.test_path",
    "data.dir",
    "predict.input",
    "predict.output",
    "export.output",
    "run.dir",
}
PATHS |= {"model.path", "model.preset", "model.weights", "data.tokenizer", "data.root"}
TFRECORD = {"kind": "tfrecord", "path": "~/train-*", "test_path": "~/a//test-*", "num_classes": 3}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_these_keys_are_paths() -> None:
    assert {
        f"{group}.{name}"
        for group, classes in list_config_classes().items()
        for cls in classes
        for name, constraints in constraints_of(cls).items()
        if any(isinstance(constraint, LocalPath) for constraint in constraints)
    } == PATHS


def test_all_of_them_are_expanded(home: Path) -> None:
    values = {
        "data": TFRECORD,
        "predict": {"input": "~/new", "output": "~/out.csv"},
        "export": {"output": "~"},
        "run": {"dir": "~/runs"},
        "model": {"kind": "lenet", "weights": "~/other"},
    }
    config = from_mapping(values)
    assert (config.data.path, config.data.test_path) == (f"{home}/train-*", f"{home}/a//test-*")
    assert (config.predict.input, config.predict.output) == (f"{home}/new", f"{home}/out.csv")
    assert (config.export.output, config.run.dir, config.model.weights) == (str(home), f"{home}/runs", f"{home}/other")
    assert from_mapping({"data": {"kind": "tfds", "name": "x", "dir": "~/sets"}}).data.dir == f"{home}/sets"
    assert from_mapping(to_mapping(config)) == config
    assert expand_homes(config) is config, "there is nothing left to do"
    in_python = expand_homes(Config(data=NpzConfig(path="~/mine.npz")))
    assert in_python.data.path == f"{home}/mine.npz"


def test_only_the_beginning_of_a_path_is_meant() -> None:
    assert from_mapping({"run": {"dir": "a/~/b~"}}).run.dir == "a/~/b~"
    assert from_mapping({"run": {"name": None}, "job": "train"}).run.dir == "runs"


def test_a_path_from_the_environment_stays_an_expression(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "~/secret")
    config = from_mapping({"data": {"kind": "npz", "path": "${oc.env:PLACE}/mine.npz"}})
    assert config.data.path == f"{home}/secret/mine.npz"
    assert to_mapping(config)["data"]["path"] == "${oc.env:PLACE}/mine.npz"


def test_the_home_of_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"run\.dir=~no-such-user/x: there is no home directory of that name; write"):
        from_mapping({"run": {"dir": "~no-such-user/x"}})
