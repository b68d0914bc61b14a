"""The key of kept graphs changes with everything that decides a graph, and with nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import tensorflow as tf

from accumtrain.config.schema import Config
from accumtrain.data.open_data import open_data
from accumtrain.devices.found import Devices
from accumtrain.engine import graph_key as module
from accumtrain.engine import training_loss
from accumtrain.engine.graph_key import graph_key, may_be_kept
from accumtrain.kinds.losses import CrossEntropyConfig
from accumtrain.kinds.models import MODELS
from accumtrain.kinds.table import Kind, named
from accumtrain.process import program

BASE = Config()


@pytest.fixture(scope="module")
def data():
    return open_data(BASE.data, 0)


@pytest.fixture(autouse=True)
def of_the_command_line(monkeypatch):
    monkeypatch.setattr(program, "is_own_command", lambda: True)


def text(config, data, total=100):
    return json.dumps(graph_key(config, data, total), sort_keys=True)


@pytest.mark.parametrize(
    "change",
    [
        {"optim": replace(BASE.optim, lr=0.1)},
        {"model": replace(BASE.model, memory="store")},
        {"model": replace(BASE.model, freeze=["*stem*"])},
        {"accum": replace(BASE.accum, steps=8)},
        {"accum": replace(BASE.accum, dtype="float64")},
        {"precision": "bfloat16"},
        {"batch_size": 32},
        {"run": replace(BASE.run, seed=1)},
        {"run": replace(BASE.run, on_nonfinite="rollback")},
        {"ema": replace(BASE.ema, decay=0.9)},
        {"data": replace(BASE.data, augment="crop_flip")},
    ],
    ids=lambda change: str(next(iter(change))),
)
def test_what_is_traced_is_in_the_key(change, data):
    assert text(replace(BASE, **change), data) != text(BASE, data)


@pytest.mark.parametrize(
    "change",
    [
        {"run": replace(BASE.run, name="other", dir="elsewhere")},
        {"log": replace(BASE.log, every=3)},
        {"checkpoint": replace(BASE.checkpoint, every=7)},
    ],
    ids=["name", "log", "checkpoint"],
)
def test_what_only_names_and_observes_a_run_is_not(change, data):
    assert text(replace(BASE, **change), data) == text(BASE, data)


def test_the_number_of_updates_and_the_weights_of_classes_are_in_the_key(data, monkeypatch):
    assert text(BASE, data, total=101) != text(BASE, data)
    balanced = replace(BASE, loss=CrossEntropyConfig(class_weights="balanced"))
    before = text(balanced, data)
    monkeypatch.setattr(training_loss, "class_counts", lambda split, classes: [100] * (classes - 1) + [1])
    assert text(balanced, data) != before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("source_digest", lambda: "other code"),
        ("versions", lambda: {"tensorflow": "9.9"}),
        ("cpu", lambda: {"model": "another", "instructions": []}),
        ("platform_name", lambda: "another system"),
    ],
    ids=["source", "versions", "cpu", "platform"],
)
def test_code_versions_and_machine_are_in_the_key(name, value, data, monkeypatch):
    before = text(BASE, data)
    monkeypatch.setattr(module, name, value)
    assert text(BASE, data) != before


@pytest.mark.parametrize(
    "variable", ["TF_ENABLE_ONEDNN_OPTS", "ACCUMTRAIN_16BIT_KERNELS", "ONEDNN_MAX_CPU_ISA", "OMP_NUM_THREADS"]
)
def test_settings_of_the_environment_are_in_the_key(variable, data, monkeypatch):
    before = text(BASE, data)
    monkeypatch.setenv(variable, "another")
    assert text(BASE, data) != before


def of_one_cpu(**changes):
    return replace(Devices(tf.distribute.get_strategy(), "CPU", xla=False), **changes)


def test_only_plain_runs_of_our_own_code_are_kept(monkeypatch):
    assert may_be_kept(BASE, of_one_cpu())
    assert not may_be_kept(BASE, of_one_cpu(xla=True))
    assert not may_be_kept(BASE, of_one_cpu(strategy=tf.distribute.OneDeviceStrategy("/cpu:0")))
    assert not may_be_kept(BASE, of_one_cpu(workers=2))
    assert not may_be_kept(replace(BASE, debug=replace(BASE.debug, eager=True)), of_one_cpu())
    assert not may_be_kept(replace(BASE, model=MODELS["keras"].config(name="MobileNetV2")), of_one_cpu())
    monkeypatch.setattr(module, "on_cpu", lambda: False)
    assert not may_be_kept(BASE, of_one_cpu())


def test_nothing_is_kept_under_a_program_of_the_users_own(monkeypatch):
    monkeypatch.setattr(program, "is_own_command", lambda: False)
    assert not may_be_kept(BASE, of_one_cpu())


@pytest.mark.parametrize("build", [lambda config, spec: SimpleNamespace(), "mine.net:build"], ids=["object", "module"])
def test_nothing_is_kept_with_a_row_of_the_users_own(build, monkeypatch):
    config = named("mynet", type(BASE.model))
    monkeypatch.setitem(MODELS.rows, "mynet", Kind(config, build))
    assert not may_be_kept(replace(BASE, model=config()), of_one_cpu())
