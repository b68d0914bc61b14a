"""Runs that earlier code has trained load, evaluate and continue."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.config.arithmetic import Epochs, total_steps
from accumtrain.dispatch import run
from accumtrain.runs.names import CHECKPOINTS, folder_of
from accumtrain.tasks.objective import open_objective
from accumtrain.train.build import build_window
from accumtrain.train.checkpoint import Checkpoints
from tests.golden.runs import ANSWERS, ASKED, EXPECTED, continued, copied, digest, exported, predictions, tensors
from tests.machine import machine
from tests.manifests import FACTS


@pytest.fixture(params=EXPECTED)
def golden(request, tmp_path):
    """The configuration of a copy of a golden run, and what is expected of it."""
    return copied(request.param, tmp_path), EXPECTED[request.param]


def test_every_tensor_is_taken_over_to_the_bit(golden, tmp_path):
    config, expected = golden
    objective = open_objective(config)
    total = total_steps(config, Epochs(config, objective.stored.train.size))
    window = build_window(config, objective, total, tf.distribute.get_strategy())
    checkpoints = Checkpoints(folder_of(config) / CHECKPOINTS, window, keep=1, facts=FACTS.copy)
    assert checkpoints.restore()["step"] == 12
    assert checkpoints.best == pytest.approx(expected["best"], rel=1e-7)
    again = Checkpoints(tmp_path / "again", window, keep=1, facts=FACTS.copy)
    again.best_accuracy.assign(checkpoints.best_accuracy)
    again.best_loss.assign(checkpoints.best_loss)
    with again:
        again.save()
    before = tensors(folder_of(config) / CHECKPOINTS / "step-12" / "state")
    now = tensors(tmp_path / "again" / "step-12" / "state")
    assert before.keys() == now.keys()
    for name, value in before.items():
        assert value.dtype == now[name].dtype, name
        assert np.array_equal(value, now[name]), name


def test_it_is_evaluated(golden):
    config, expected = golden
    result = run(replace(config, job="evaluate"))
    assert result["step"] == expected["best_step"]
    found = {name: result["test"][name] for name in expected["test"]}
    assert found == pytest.approx(expected["test"], abs=0.01)


def leaves(value, path=()):
    """The values of nested lists and dicts by their paths: numbers to compare with a tolerance, and all others."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in items:
            yield from leaves(each, (*path, key))
    else:
        yield path, value


def assert_alike(found, expected):
    assert dict(leaves(found)) == pytest.approx(dict(leaves(expected)), abs=2e-4)


@pytest.mark.parametrize("name", ASKED)
def test_it_predicts(name, tmp_path):
    assert_alike(predictions(copied(name, tmp_path), name), ANSWERS[name]["predictions"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ASKED)
def test_it_is_exported(name, tmp_path):
    assert exported(copied(name, tmp_path)) == ANSWERS[name]["export"]


@pytest.mark.slow
def test_it_continues(golden, capsys):
    config, expected = golden
    last = continued(config, expected)
    assert "continuing after update 12 of 24" in capsys.readouterr().out
    lines = (folder_of(config) / "metrics.jsonl").read_text().splitlines()
    losses = [(each["split"], each["step"], each["loss"]) for each in map(json.loads, lines) if each["step"] > 12]
    assert [list(place) for *place, _ in losses] == [list(place) for *place, _ in expected["losses"]]
    for (*place, loss), (*_, then) in zip(losses, expected["losses"], strict=True):
        assert loss == pytest.approx(then, abs=expected["tolerance"]), place
    if machine() in expected["bits"]:  # elsewhere kernels sum in another order
        assert digest(last) == expected["bits"][machine()]
