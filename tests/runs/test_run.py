"""The run's folder: names, the lock, what may change between two starts, and files that are whole or absent."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import re
import resource
import signal
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from accumtrain.config.read import from_mapping, to_mapping
from accumtrain.config.schema import Config
from accumtrain.engine.config import AccumConfig
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.runs import lock
from accumtrain.runs.checkpoint_store import CheckpointStore
from accumtrain.runs.contents import read_config, read_summary
from accumtrain.runs.files import write_json
from accumtrain.runs.names import LOCK, differences, folder_of, has_same_class_count, learned_values, run_name
from accumtrain.runs.run import ReadOnlyRun, Run
from tests.manifests import FACTS


@pytest.fixture
def config(compose, tmp_path):
    config = compose()
    return replace(config, run=replace(config.run, name="one", dir=str(tmp_path / "runs")))


def changed(config, key: str, value):
    mapping = to_mapping(config)
    *groups, name = key.split(".")
    reduce(getitem, groups, mapping)[name] = value
    return from_mapping(mapping)


def record(step: int, split: str = "train", **more):
    return {"step": step, "split": split, "seconds": 1.0, **more}


def train(config) -> None:
    """Leave the files of a run that has trained."""
    with Run(config) as run:
        run.save_config(config)
        run.log(record(1, loss=1.0))
        facts = FACTS | {"learned": learned_values(config)}
        CheckpointStore(run.checkpoints).write(1, lambda prefix: Path(prefix).touch(), lambda prefix: None, facts)


# ---- names ----


def named(compose, *overrides):
    return run_name(compose(*overrides), overrides)


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([], "revnet38-digits"),
        (["job=evaluate", "run.dir=elsewhere", "run.resume=false", "log.every=1"], "revnet38-digits"),
        (["debug.profile=3", "sweep.fail_fast=true"], "revnet38-digits"),
        (["batch_size=32", "accum.steps=2"], "revnet38-digits-accum.steps2-batch_size32"),
        (["accum.steps=2", "batch_size=32"], "revnet38-digits-accum.steps2-batch_size32"),
        (["run.seed=3"], "revnet38-digits-seed3"),
        (["model=lenet5"], "lenet5-digits"),
        (["model=keras", "model.name=VGG16"], "VGG16-digits"),
        (["data=cifar100", "device=cpu"], "revnet38-cifar100-device_cpu"),
        (["experiment=cifar10_resnet32", "data=cifar100"], "cifar10_resnet32-data_cifar100"),
        (["data=folder", "data.path=photos", "data.augment=crop_flip"], "revnet38-photos-augment_crop_flip"),
        (["data=npz", "data.path=mine.npz"], "revnet38-mine"),
        (["optim=adam", "optim.beta1=0.8"], "revnet38-digits-optim_adam-beta1_0.8"),
        (["run.name=mine", "batch_size=32"], "mine"),
    ],
)
def test_name_is_derived_from_the_command(overrides, name, compose):
    assert named(compose, *overrides) == name


def test_names_that_are_shortened_stay_apart(compose):
    paths = ("/a/photos", "/b/photos", "/a_photos", "/a/" + "photos/" * 30)
    names = [named(compose, "data=folder", f"data.path={path}") for path in paths]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 55 and "/" not in name for name in names)


def test_many_keys_are_cut_between_words(compose):
    overrides = ["data=folder", "data.path=photos", "data.image_size=64", "data.augment=crop_flip", "optim.lr=0.01"]
    first, second = (named(compose, *overrides, f"run.seed={seed}") for seed in (1, 2))
    assert re.fullmatch(r"revnet38-photos-augment_crop_flip-image_size64-[0-9a-f]{6}", first)
    assert first != second


# ---- identity: what decides what is learned ----


def difference(before: AccumConfig, now: AccumConfig) -> str:
    return differences(*(learned_values(Config(accum=accum)) for accum in (before, now)))


def test_the_number_of_micro_batches_decides_nothing_under_a_mean_and_does_under_a_sum():
    assert difference(AccumConfig(steps=4), AccumConfig(steps=8)) == ""
    four, eight = (AccumConfig(steps=steps, reduction="sum") for steps in (4, 8))
    assert difference(four, eight) == "accum.steps=4 there and 8 here"
    assert difference(AccumConfig(steps=4), four) == "accum.reduction=mean there and sum here"


def test_the_state_of_a_run_goes_on_with_as_many_classes():
    named = {"data.classes": ["cat", "dog"], "data.train.examples": 8}
    assert has_same_class_count(named, {"data.classes": ["cat", "owl"], "data.train.examples": 9})
    assert has_same_class_count(named, {"data.classes": 2})
    assert not has_same_class_count(named, {"data.classes": ["cat", "dog", "owl"]})
    assert not has_same_class_count({"data.classes": 10}, {"data.classes": 3})


# ---- opening ----


def test_constructing_touches_nothing(config, tmp_path):
    run = Run(config)
    assert run.path == tmp_path / "runs" / "one"
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_writes_nothing_leaves_an_empty_folder(config):
    with Run(config) as run:
        assert list(run.path.iterdir()) == [run.path / LOCK]
    assert list(run.path.iterdir()) == []
    with Run(config) as run:
        run.save_config(config)
    assert {path.name for path in run.path.iterdir()} == {LOCK, "config.yaml"}


def test_folder_that_is_a_file(config, tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(ConfigError, match=r"can't be used: .*; choose another run\.dir"):
        Run(config).__enter__()


def test_folder_that_can_not_be_written(config, monkeypatch):
    def refuse(self, *args, **kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", refuse)  # permissions do not stop root
    with pytest.raises(ConfigError, match=r"runs/one can't be used: Permission denied; choose another run\.dir"):
        Run(config).__enter__()


def hold(config, held, release) -> None:
    with Run(config):
        held.set()
        release.wait()


def test_one_process_at_a_time(config):
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    other = context.Process(target=hold, args=(config, held, release))
    other.start()
    try:
        assert held.wait(60)
        told = f"process {other.pid} on .* started .* is training in .*choose another run.name"
        with pytest.raises(ConfigError, match=told):
            Run(config).__enter__()
    finally:
        release.set()
        other.join()
    with Run(config):  # the lock went with its process
        pass


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train.epochs", 40.0),
        ("accum.steps", 8),
        ("device.kind", "cpu"),
        ("model.memory", "store"),
        ("eval.every", 5),
        ("checkpoint.every", 5),
        ("log.every", 5),
    ],
)
def test_may_change_when_continued(key, value, config):
    train(config)
    with Run(changed(config, key, value)) as run:
        assert len(run.records()) == 1


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("batch_size", 32, "batch_size=64 there and 32 here"),
        ("precision", "bfloat16", "precision=float32 there and bfloat16 here"),
        ("run.seed", 1, "run.seed=0 there and 1 here"),
        ("model.units", [1, 1, 1], r"model.units=\[3,3,3\] there and \[1,1,1\] here"),
        ("optim.lr", 0.5, "optim.lr=0.05 there and 0.5 here"),
        ("schedule.warmup", 9, "schedule.warmup=0 there and 9 here"),
        ("data.augment", "shift", "data.augment=none there and shift here"),
        ("ema.decay", 0.9, "ema.decay=0.0 there and 0.9 here"),
    ],
)
def test_must_not_change_when_continued(key, value, shown, config):
    train(config)
    with pytest.raises(ConfigError, match=rf"learns something else: {shown}; choose another run.name"):
        Run(changed(config, key, value)).__enter__()
    with Run(config):  # the refused one let go of the lock
        pass


def test_anything_may_change_before_anything_was_trained(config):
    with Run(config) as run:
        run.save_config(config)
    with Run(changed(config, "batch_size", 32)):
        pass


def test_resume_false_spares_a_trained_run(config):
    train(config)
    with pytest.raises(ConfigError, match=r"run.resume=false, but .* holds a trained run"):
        Run(changed(config, "run.resume", False)).__enter__()


def test_saved_config_is_the_configuration(config):
    with Run(config) as run:
        run.save_config(config)
        assert from_mapping(OmegaConf.to_container(OmegaConf.load(run.path / "config.yaml"))) == config


# ---- metrics and summary ----


class Scalar:
    """A number like a NumPy scalar."""

    def __init__(self, value):
        self.value = value

    def item(self):
        return self.value


def test_log_is_json_line_by_line(config):
    with Run(config) as run:
        run.log(
            {"step": Scalar(1), "split": "train", "seconds": 1.0, "loss": float("nan"), "rate": Scalar(float("inf"))}
        )
        run.log(record(2, loss=None))
        lines = (run.path / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == run.records()
        assert run.records() == [record(1, loss=None, rate=None), record(2, loss=None)]


def steps_of(run):
    return [each["step"] for each in run.records()]


def test_truncate_drops_what_comes_after_the_checkpoint(config):
    with Run(config) as run:
        run.truncate(0)  # no file yet
        for step in range(1, 5):
            run.log(record(step, loss=1 / 3))
        before = (run.path / "metrics.jsonl").read_text().splitlines(keepends=True)
        with (run.path / "metrics.jsonl").open("a") as file:
            file.write('{"step": 5, "lo')  # the process was killed here
        run.truncate(2)
        assert (run.path / "metrics.jsonl").read_text() == "".join(before[:2])
        run.log(record(3))
        assert steps_of(run) == [1, 2, 3]


def test_a_bystander_sees_what_the_holder_keeps_and_writes_nothing(config):
    """The holder may cut off what was logged after the checkpoint before or after the bystander reads."""
    with Run(config) as held:
        for step in (1, 2, 3):
            held.log(record(step, "test"))
        before = sorted(held.path.iterdir())
        with ReadOnlyRun(config) as run:
            run.truncate(2)
            run.save_config(config)
            run.log(record(9, "test"))
            assert steps_of(run) == [1, 2]
        assert sorted(held.path.iterdir()) == before
        assert steps_of(held) == [1, 2, 3]


def test_damaged_metrics_are_named(config):
    with Run(config) as run:
        (run.path / "metrics.jsonl").write_text('{"step": 1, "split": "train", "seconds": 1.0}\n{"st\n{"step": 3}\n')
        with pytest.raises(CheckpointError, match=r"metrics.jsonl line 2 is not a record of a run"):
            run.records()


def test_summary_is_read_back(config):
    with Run(config) as run:
        assert read_summary(run.path) is None
        write_json(
            run.path / "summary.json",
            {"status": "completed", "step": 3, "test": {"loss": Scalar(float("nan")), "accuracy": 0.5}},
        )
        assert read_summary(run.path) == {"status": "completed", "step": 3, "test": {"loss": None, "accuracy": 0.5}}


# ---- a full disk ----


def test_full_disk_leaves_no_half_line(config):
    with Run(config) as run:
        run.log(record(1))
        line = (run.path / "metrics.jsonl").stat().st_size
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (line + 5, before[1]))  # room for five bytes of the next line
        try:
            with pytest.raises(CheckpointError, match="no space is left"):
                run.log(record(2))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, ignored)
        run.log(record(3))
        assert steps_of(run) == [1, 3]


def test_a_full_disk_has_room_for_the_lock(config, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(lock.os, "pwrite", full)
    with Run(config) as run, pytest.raises(ConfigError, match="is training in"):
        Run(config).__enter__()
    assert run.path.is_dir()


@pytest.mark.parametrize("left", ["damaged checkpoints", "the summary", "the metrics"])
def test_what_is_left_of_a_run_is_no_new_run(config, left):
    with Run(config) as run:
        run.check_not_begun()
        if left == "damaged checkpoints":
            (run.checkpoints / "quarantine/step-500").mkdir(parents=True)
        elif left == "the summary":
            (run.path / "summary.json").write_text('{"status": "preempted", "step": 500}')
        else:
            (run.path / "metrics.jsonl").write_text("{}\n")
        with pytest.raises(CheckpointError, match=f"holds {left} of a run, but no checkpoint"):
            run.check_not_begun()


def test_a_saved_configuration_stands_for_no_other_values(config):
    """Each of 40 texts holds the one before twice: their values would take a terabyte."""
    with Run(config) as run:
        run.save_config(config)
    file = run.path / "config.yaml"
    doubled = [f"a{number}: ${{a{number - 1}}}${{a{number - 1}}}" for number in range(1, 41)]
    file.write_text("\n".join([file.read_text(), "a0: x", *doubled]).replace("dir: ", "dir: ${a40}", 1))
    with pytest.raises(CheckpointError, match=r"config\.yaml is damaged: run\.dir=.* stands for other values"):
        read_config(file)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("accum.steps", [2], "accum.steps=[2]: must be a number of micro-batches per update, or auto"),
        ("loss.label_smoothing", "x", "loss.label_smoothing=x: must be a number"),
        ("batch_size", True, "batch_size=true: must be a whole number"),
        ("data.mean", 0.5, "data.mean=0.5: must be a list of numbers"),
        ("run.name", 5, "run.name=5: must be text or null"),
        ("data", "digits", "data=digits: data is a group of keys"),
    ],
)
def test_a_saved_configuration_has_the_types_of_its_keys(config, key, value, message):
    mapping = to_mapping(config)
    *groups, name = key.split(".")
    reduce(getitem, groups, mapping)[name] = value
    file = folder_of(config) / "config.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump(mapping))
    with pytest.raises(CheckpointError) as caught:
        read_config(file)
    assert message in str(caught.value)
