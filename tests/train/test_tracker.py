"""Services that get the records of a run, with stand-ins; and, where they are installed, the services themselves."""

import json
import os
import struct
import subprocess
import sys
from types import ModuleType

import pytest

from accumtrain.config.registries import list_added_modules, register_tracker
from accumtrain.errors import ConfigError
from accumtrain.train.config import TRACKERS, TrackerEntry
from accumtrain.train.tell.trackers import GuardedTracker, identifier, metrics, numbers, open_service
from tests.train.conftest import json_of, records_of

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
    service = GuardedTracker("mine", listener)
    service.log(RECORD)
    service.finish({"status": "completed"})
    service.close()
    assert listener.heard == [RECORD, {"status": "completed"}, "closed"]


def test_a_training_goes_on_without_a_service_that_fails(capsys):
    listener = Listener(fails_at=1)
    service = GuardedTracker("mine", listener)
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
    monkeypatch.setattr("accumtrain.config.check.find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=rf"log.tracker={name}: .* pip install 'accumtrain\[{name}\]'"):
        compose(f"log.tracker={name}")
    assert compose(f"log.tracker={name}", "job=evaluate").log.tracker == name, "which sends nothing"


def test_an_unknown_service(compose):
    with pytest.raises(ConfigError, match=r"log.tracker=wandbb: no such choice; did you mean wandb"):
        compose("log.tracker=wandbb")


def test_a_service_that_refuses_the_run(compose, tmp_path, monkeypatch):
    def refuse(*_):
        raise ValueError("no key")

    monkeypatch.setitem(TRACKERS.entries, "wandb", TrackerEntry("wandb", refuse, "json", "wandb"))
    monkeypatch.setitem(sys.modules, "wandb", ModuleType("wandb"))
    with pytest.raises(ConfigError, match=r"log.tracker=wandb: no key; "):
        open_service(compose("log.tracker=wandb"), tmp_path)


def test_a_run_tells_the_service(compose, tmp_path, monkeypatch):
    listener = Listener()
    monkeypatch.setitem(TRACKERS.entries, "wandb", TrackerEntry("wandb", lambda *_: listener, "json", "wandb"))
    (service,) = open_service(compose("log.tracker=wandb"), tmp_path)
    service.log(RECORD)
    assert listener.heard == [RECORD]
    assert open_service(compose(), tmp_path) == []


def test_a_registered_tracker_is_a_choice(compose, tmp_path, monkeypatch):
    listener = Listener()
    monkeypatch.setattr(TRACKERS, "entries", dict(TRACKERS.entries))
    register_tracker("mine", lambda *given: listener.log((*given[:2], given[2]["log.tracker"])) or listener)
    (service,) = open_service(compose("log.tracker=mine"), tmp_path / "one")
    service.log(RECORD)
    assert listener.heard == [("one", tmp_path / "one", "mine"), RECORD]
    assert __name__ in list_added_modules()
    for taken in ("mine", "none"):
        with pytest.raises(ValueError, match=f"log.tracker={taken}"):
            register_tracker(taken, Listener)


# --- the services themselves, in files of this machine ------------------------------------------------------------


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    """Its client, of a store of files."""
    module = pytest.importorskip("mlflow", reason="needs pip install '.[mlflow]'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return module.MlflowClient()


@pytest.fixture
def trained_twice(tmp_path):
    """Train two updates, stop, and go on with two more. Return the records."""

    def train(name):
        arguments = ["model=lenet5", "schedule=constant", "batch_size=64", "accum.steps=2", "log.every=1"]
        for steps in (2, 4):
            command = [sys.executable, "-m", "accumtrain", *arguments, f"run.dir={tmp_path}", "run.name=one"]
            command += [f"log.tracker={name}", f"train.steps={steps}"]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, "")
        return records_of(tmp_path / "one")

    return train


def losses(records, split):
    return [(record["step"], record["loss"]) for record in records if record["split"] == split]


@pytest.mark.slow
def test_mlflow_has_each_record_of_a_continued_run_once(mlflow, trained_twice, tmp_path):
    records = trained_twice("mlflow")
    number = json_of(tmp_path / "one", "tracker")["mlflow"]
    run = mlflow.get_run(number)
    assert (run.info.run_name, run.info.status) == ("one", "FINISHED")
    assert run.data.params["accum.steps"] == "2"
    for split, count in (("train", 4), ("test", 2)):
        history = [(each.step, each.value) for each in mlflow.get_metric_history(number, f"{split}/loss")]
        assert history == losses(records, split)
        assert len(history) == count
    assert run.data.metrics["summary/best/loss"] == json_of(tmp_path / "one")["best"]["loss"]


@pytest.mark.slow
def test_mlflow_keeps_what_a_killed_session_told(mlflow, tmp_path):
    """It had told more than its last checkpoint holds, so the next session makes the same updates again."""
    from accumtrain.train.tell.trackers import MlflowTracker

    def session(*records, summary=None):
        tracker = MlflowTracker("one", tmp_path, {"batch_size": 64})
        for record in records:
            tracker.log(record)
        if summary:
            tracker.finish(summary)
        tracker.close()
        number = json_of(tmp_path, "tracker")["mlflow"]
        steps = [each.step for each in mlflow.get_metric_history(number, "train/loss")]
        return steps, mlflow.get_run(number).info.status

    eighth = {**RECORD, "step": 8}
    assert session(RECORD) == ([7], "FAILED")
    stopped = {"status": "preempted", "step": 8}
    assert session(RECORD, {**RECORD, "split": "test"}, eighth, summary=stopped) == ([7, 8], "KILLED")


def wandb_records(file):
    """The records of a .wandb file: LevelDB's log format after 7 bytes, each a message of their protocol."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, record = file.read_bytes(), 7, b""
    while place + 7 <= len(content):
        left = 2**15 - place % 2**15
        if left < 7:  # the end of a block, which no header fits into
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(record)
            record = b""


@pytest.mark.slow
def test_wandb_has_each_record_of_a_continued_run_once(trained_twice, tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="needs pip install '.[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HOME", str(tmp_path))  # it leaves logs below ~/.cache
    records = trained_twice("wandb")
    number = json_of(tmp_path / "one", "tracker")["wandb"]
    files = sorted((tmp_path / "one" / "wandb").glob(f"offline-run-*-{number}/run-{number}.wandb"))
    assert len(files) == 2, "a session each, of one run"
    told = [record for file in files for record in wandb_records(file)]
    assert {(each.run.run_id, each.run.display_name) for each in told if each.HasField("run")} == {(number, "one")}
    assert [each.exit.exit_code for each in told if each.HasField("exit")] == [0, 0]
    history = [
        (each.history.step.num, "/".join(item.nested_key), json.loads(item.value_json))
        for each in told
        if each.HasField("history")
        for item in each.history.item
    ]
    for split, count in (("train", 4), ("test", 2)):
        found = [(step, value) for step, key, value in history if key == f"{split}/loss"]
        assert found == losses(records, split)
        assert len(found) == count
