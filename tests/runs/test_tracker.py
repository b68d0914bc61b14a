"""Services that get the records of a run, with stand-ins for those that are not installed here."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from accumtrain.errors import ConfigError
from accumtrain.kinds.trackers import TRACKERS, TrackerKind
from accumtrain.runs.tracker import Service, identifier, metrics, numbers, open_service

RECORD = {"split": "train", "step": 7, "epoch": 0.5, "loss": 1.25, "accuracy": None, "seconds": 3.0}


class Listener:
    """A service that fails from the record `fails_at` on."""

    def __init__(self, fails_at=None):
        self.heard, self.fails_at = [], fails_at

    def log(self, record):
        if len(self.heard) == self.fails_at:
            raise OSError("the server is away\nfor a while")
        self.heard.append(record)

    finish = log

    def close(self):
        self.heard.append("closed")


def test_a_service_hears_everything():
    listener = Listener()
    service = Service("mine", listener)
    service.log(RECORD)
    service.finish({"status": "completed"})
    service.close()
    assert listener.heard == [RECORD, {"status": "completed"}, "closed"]


def test_a_training_goes_on_without_a_service_that_fails(capsys):
    listener = Listener(fails_at=1)
    service = Service("mine", listener)
    for _ in range(3):
        service.log(RECORD)
    service.close()
    assert listener.heard == [RECORD]
    assert capsys.readouterr().err.splitlines() == [
        "warning: log.tracker=mine gets no more records: the server is away; metrics.jsonl has all of them"
    ]


def test_numbers_are_what_is_sent():
    assert metrics(RECORD) == {"train/epoch": 0.5, "train/loss": 1.25, "train/seconds": 3.0}
    nested = {"a": {"b": 1, "c": True, "d": "x"}, "e": float("inf"), "f": 10**400}
    assert dict(numbers(nested, "summary")) == {"summary/a/b": 1}


def test_a_continued_run_keeps_its_identifier(tmp_path):
    assert identifier(tmp_path, "one", lambda: "first") == "first"
    assert identifier(tmp_path, "two", lambda: "other") == "other"
    assert identifier(tmp_path, "one", lambda: "second") == "first"


@pytest.mark.parametrize("name", TRACKERS.names)
def test_a_service_that_is_not_installed_is_refused_before_anything_else(name, compose, monkeypatch):
    monkeypatch.setattr("accumtrain.config.rules.find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=rf"log.tracker={name}: .* pip install 'accumtrain\[{name}\]'"):
        compose(f"log.tracker={name}")
    assert compose(f"log.tracker={name}", "job=evaluate").log.tracker == name, "which sends nothing"


def test_an_unknown_service(compose):
    with pytest.raises(ConfigError, match=r"log.tracker=wandbb: no such choice; did you mean wandb"):
        compose("log.tracker=wandbb")


def test_a_service_that_refuses_the_run(compose, tmp_path, monkeypatch):
    def refuse(*_):
        raise ValueError("no key")

    monkeypatch.setitem(TRACKERS.rows, "wandb", TrackerKind("wandb", refuse, "json", "wandb"))
    monkeypatch.setitem(sys.modules, "wandb", ModuleType("wandb"))
    with pytest.raises(ConfigError, match=r"log.tracker=wandb: no key; "):
        open_service(compose("log.tracker=wandb"), tmp_path)


def test_a_run_tells_the_service(compose, tmp_path, monkeypatch):
    listener = Listener()
    monkeypatch.setitem(TRACKERS.rows, "wandb", TrackerKind("wandb", lambda *_: listener, "json", "wandb"))
    (service,) = open_service(compose("log.tracker=wandb"), tmp_path)
    service.log(RECORD)
    assert listener.heard == [RECORD]
    assert open_service(compose(), tmp_path) == []
