"""SIGTERM in each phase of a training: exit code 75, and the same command goes on to the same end."""

import os
import signal
from functools import reduce
from importlib import import_module

import pytest

from accumtrain.dispatch import run
from accumtrain.errors import Preempted

SMALL = (
    *("model=lenet5", "data=synthetic", "data.image_size=8", "data.train_examples=16", "data.test_examples=8"),
    *("optim=sgd", "batch_size=8", "accum.steps=2", "train.steps=3", "eval.every=2", "run.name=one"),
)
NOTHING_LOST = "stopped by SIGTERM when there was nothing to save"


@pytest.fixture
def stop_in(monkeypatch):
    """Send SIGTERM when the code at "module:name" is called."""

    def stop(place):
        module, _, path = place.partition(":")
        *parts, name = path.split(".")
        owner = reduce(getattr, parts, import_module(f"accumtrain.{module}"))
        called = getattr(owner, name)

        def signalled(*arguments, **keywords):
            os.kill(os.getpid(), signal.SIGTERM)
            return called(*arguments, **keywords)

        monkeypatch.setattr(owner, name, signalled)

    return stop


@pytest.mark.parametrize(
    ("place", "message"),
    [
        pytest.param("train.train:resolve_devices", NOTHING_LOST, marks=pytest.mark.slow),
        pytest.param("train.train:open_objective", NOTHING_LOST, marks=pytest.mark.slow),
        pytest.param("train.train:window_with_weights", NOTHING_LOST, marks=pytest.mark.slow),
        pytest.param("engine.step:Step.prepare", "stopped after update 0 of 3", marks=pytest.mark.slow),
        pytest.param("engine.step:Step.accumulate", "stopped after update 0 of 3", marks=pytest.mark.slow),
        ("engine.step:Step.commit", "stopped after update 1 of 3"),
        ("train.evaluator:Evaluator.__call__", "stopped after update 2 of 3"),
        pytest.param("train.train:draw_curves", NOTHING_LOST, marks=pytest.mark.slow),
    ],
)
def test_sigterm(compose, tmp_path, monkeypatch, stop_in, place, message):
    config = compose(*SMALL, f"run.dir={tmp_path}")
    stop_in(place)
    with pytest.raises(Preempted, match=message):
        run(config)
    monkeypatch.undo()
    summary = run(config)
    assert (summary["status"], summary["step"]) == ("completed", 3)
