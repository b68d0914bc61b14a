"""Tasks that a program adds: what is wrong about them is refused, and their answers may have columns of their own."""

import json
from pathlib import Path

import numpy as np
import pytest

import accumtrain
from accumtrain.config.keys import read_class_summary
from accumtrain.config.registries import REGISTRIES
from accumtrain.data.open_data import open_data
from accumtrain.errors import ConfigError
from accumtrain.registry import with_kind
from accumtrain.tasks.collected import Collected
from accumtrain.tasks.config import LossConfig, TaskConfig
from accumtrain.tasks.objective import build_objective
from tests.programs import run_python

PROGRAM = Path(__file__).parent / "outsider.py"
CLASSES = accumtrain.CrossEntropyConfig
PAIRS = ("task=angle", "data=angles", "model=lenet5", "train.steps=4", "batch_size=16", "run.name=one")
TWO = ("task=regress", "data=two", "model=of_two", "train.steps=2", "batch_size=16", "run.name=two")


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"loss": "cross_entropy"}, TypeError, "task=mine: 'cross_entropy' is no registered loss; give what"),
        ({"loss": LossConfig}, TypeError, "is no registered loss; give what register_loss returns"),
        ({"loss": CLASSES, "targets": "numbers"}, ValueError, "targets are numbers, and loss=cross_entropy takes cl"),
        ({"loss": CLASSES, "metrics": "accuracy"}, TypeError, "metrics='accuracy' is a text; give a list of names"),
        ({"loss": CLASSES, "metrics": ["accuracy"], "best": "top5"}, ValueError, "best=top5 is none of its metrics"),
    ],
)
def test_a_task_that_can_not_be_is_refused_when_it_is_registered(given, error, message):
    with pytest.raises(error) as caught:
        accumtrain.register_task("mine", accumtrain.Classify, **given)
    assert message in str(caught.value)
    assert "mine" not in REGISTRIES["task"].entries


def test_help_says_of_a_task_without_keys_where_it_comes_from():
    assert read_class_summary(with_kind("mine", TaskConfig, TaskConfig)) == "Added by a program or a package."


@pytest.mark.parametrize("build", [object, lambda config: 3])
def test_what_is_no_class_of_objectives_is_refused(monkeypatch, build):
    monkeypatch.setattr(REGISTRIES["task"], "entries", dict(REGISTRIES["task"].entries))
    chosen = accumtrain.register_task("no_task", build, loss=CLASSES)
    with pytest.raises(ConfigError, match=r"task=no_task: .* is no subclass of accumtrain\.Objective"):
        build_objective(accumtrain.Config(task=chosen()), None)


@pytest.mark.parametrize("given", [{"augment": "crop_flip"}, {"image_size": 12}, {"mixup": 0.2}, {"mean": [0.0]}])
def test_keys_of_images_are_refused_for_other_inputs(monkeypatch, given):
    monkeypatch.setattr(REGISTRIES["data"], "entries", dict(REGISTRIES["data"].entries))
    split = accumtrain.ArraySplit(np.zeros([4, 3], np.float32), np.arange(4, dtype=np.int32) % 2)
    chosen = accumtrain.register_data(
        "plain", lambda config, seed: accumtrain.Source(split, split, 2, inputs=accumtrain.Arrays((3,)))
    )
    assert open_data(chosen(), 0).inputs == accumtrain.Arrays((3,))
    (key,) = given
    with pytest.raises(ConfigError, match=rf"data\.{key}=.*is for images, and the inputs of data=plain are others"):
        open_data(chosen(**given), 0)


def test_a_metric_of_a_whole_split_returns_one_number():
    collected = Collected({"wrong": lambda targets, outputs: outputs[0]}, 4, 2, 1, targets=[], outputs=3)
    collected.update({"targets": np.zeros(2), "inputs": np.zeros(2)}, np.zeros([2, 3], np.float32))
    with pytest.raises(ConfigError, match=r"wrong returns values of the shape \[3\]"):
        collected.take()


@pytest.mark.slow
def test_answers_may_have_other_columns_than_outputs(tmp_path):
    np.save(tmp_path / "images.npy", np.zeros([3, 8, 8, 1], np.float32))
    call(tmp_path, *PAIRS)
    call(tmp_path, "job=verify", "run.name=one")
    assert "float32 [images, 1], degrees of angle" in call(tmp_path, "job=export", "run.name=one")
    found = json.loads(call(tmp_path, "load", "one").splitlines()[-1])
    assert found["names"] == ["angle"]
    shown = [{name: list(values) for name, values in record.items()} for record in found["records"]]
    assert shown == [{"degrees": ["angle"]}] * 3


@pytest.mark.slow
def test_several_inputs_are_trained_on_and_their_predictions_refused(tmp_path):
    call(tmp_path, *TWO)
    for job in (("job=export",), ("job=predict", f"predict.input={PROGRAM}")):
        assert "take a model of one array [N, ...]" in call(tmp_path, *job, "run.name=two", code=2)


def call(folder, *arguments, code=0):
    done = run_python(PROGRAM, *arguments, cwd=folder)
    assert done.returncode == code, done.stderr[-2000:]
    return done.stdout + done.stderr
