"""job=evaluate tells of classes and mistakes what predictions of the same images tell."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.data.open_data import open_data
from accumtrain.data.pipeline import show_inputs
from accumtrain.dispatch import run
from accumtrain.engine.replica import as_replica
from accumtrain.engine.runtime import TensorFlowRuntime
from accumtrain.errors import CheckpointError
from accumtrain.report.classes import ClassReport, Confusion
from accumtrain.tasks import classify
from accumtrain.tasks.objective import open_objective
from accumtrain.train.evaluator import build_evaluator
from accumtrain.train.trained.load import trained_model
from accumtrain.train.trained.predict import compile_answers, predictions
from tests.train.conftest import assert_error, json_of, records_of

TRAINED = (
    *("model=lenet5", "optim=sgd", "optim.lr=0.05", "batch_size=64", "accum.steps=2", "train.steps=8", "eval.every=8"),
    "run.name=one",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, compose):
    """The configuration of a short run on digits, which makes mistakes."""
    config = compose(*TRAINED, f"run.dir={tmp_path_factory.mktemp('evaluated') / 'runs'}")
    run(config)
    return config


@pytest.fixture
def here(trained, tmp_path, command):
    """A copy of the run, in the folder that commands run in."""
    shutil.copytree(trained.run.dir, tmp_path / "runs")
    return tmp_path / "runs" / "one"


def test_findings_are_of_the_replicas_of_the_runtime(trained):
    """With JAX there are some that no strategy of TensorFlow knows of."""

    class OfThree(TensorFlowRuntime):
        replicas = 3

    objective, runtime = open_objective(trained), OfThree()
    model = trained_model(trained, objective.trained_on, {}).model
    (finder,) = build_evaluator(trained, objective, "test", 60, model, runtime, reports=True).collectors
    with as_replica(tf.constant(2), 3):
        finder.update({"targets": tf.zeros([20], tf.int32)}, tf.one_hot(tf.ones([20], tf.int32), 10))
    _, mistakes = finder.read(objective.data.classes)
    assert [mistake.index for mistake in mistakes] == [*range(40, 60)], "the third part of the first batch"


def test_it_equals_predictions(trained, here, command):
    objective, strategy = open_objective(trained), tf.distribute.get_strategy()
    model = trained_model(trained, objective.trained_on, {})
    answers = compile_answers(model, strategy, model.answer.predict)
    parts = predictions(answers, objective.data, batch=50, strategy=strategy)
    labels, probabilities = (np.concatenate(each) for each in zip(*parts, strict=True))
    classes = np.argsort(-probabilities, axis=1, kind="stable")
    probabilities = np.take_along_axis(probabilities, classes, axis=1)
    found = classes[:, 0]
    answer = command("job=evaluate", "run.name=one")
    assert answer.code == 0, answer.err
    result = json_of(here, "evaluation")
    (trained_to,) = records_of(here, "test")
    assert all(result["test"][name] == trained_to[name] for name in ("loss", "accuracy"))
    assert result["test"]["top5"] == pytest.approx(np.mean(np.any(classes[:, :5] == labels[:, None], -1)))

    assert sum(each["examples"] for each in result["classes"]) == len(labels) == 360
    for each in result["classes"]:
        own, taken = labels == int(each["name"]), found == int(each["name"])
        assert each["examples"] == own.sum()
        assert each["accuracy"] == pytest.approx(np.mean(found[own] == labels[own]))
        assert each["precision"] == (pytest.approx(np.mean(own[taken])) if taken.any() else None)
    accuracies = [each["accuracy"] for each in result["classes"]]
    assert accuracies == sorted(accuracies)
    assert accuracies[0] < accuracies[-1]
    for pair in result["confused"]:
        both = (labels == int(pair["true"])) & (found == int(pair["predicted"]))
        assert pair["count"] == both.sum()
    assert sum(pair["count"] for pair in result["confused"]) == np.sum(labels != found)

    losses = -np.log(np.take_along_axis(probabilities, np.argsort(classes), -1)[range(360), labels])
    wrong = np.flatnonzero(labels != found)
    worst = wrong[np.argsort(-losses[wrong], kind="stable")][:24]
    assert len(result["mistakes"]) == 24
    np.testing.assert_allclose([each["loss"] for each in result["mistakes"]], losses[worst], rtol=1e-4)
    for each in result["mistakes"]:
        index = each["index"]
        assert (int(each["label"]), int(each["predicted"])) == (labels[index], found[index])
        assert each["probability"] == pytest.approx(probabilities[index, 0], rel=1e-4)
    assert {here / name for name in ("confusion.png", "mistakes.png")} <= set(here.iterdir())
    assert "class  examples  accuracy  precision" in answer.out
    assert "measured: the best state, update 8, on the test images of digits; in runs/one/evaluation.json" in answer.out


@pytest.mark.slow
def test_the_results_of_the_best_and_the_last_state_stand_side_by_side(here, command):
    names = ("evaluation.json", "confusion.png", "mistakes.png")
    assert command("job=evaluate", "run.name=one").code == 0
    before = {name: (here / name).read_bytes() for name in names}
    last = command("job=evaluate", "run.name=one", "state=last")
    assert (
        "measured: the last state, update 8, on the test images of digits; in runs/one/evaluation_last.json" in last.out
    )
    assert {name: (here / name).read_bytes() for name in names} == before
    pictures = json_of(here, "evaluation_last")["pictures"]
    assert pictures == ["runs/one/confusion_last.png", "runs/one/mistakes_last.png"]
    assert {Path(picture).name for picture in pictures} <= {file.name for file in here.iterdir()}


@pytest.mark.slow
def test_replicas_count_every_example_once(here, command):
    """360 examples in batches of 64: the last one is filled up."""
    assert command("job=evaluate", "run.name=one").code == 0
    alone = json_of(here, "evaluation")
    mirrored = ("job=evaluate", "run.name=one", "device=mirrored", "device.virtual=2")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-m", "accumtrain", *mirrored], env=environment, check=True)
    together = json_of(here, "evaluation")
    for key in ("classes", "confused", "pictures"):
        assert together[key] == alone[key]
    assert [each["index"] for each in together["mistakes"]] == [each["index"] for each in alone["mistakes"]]


def test_the_images_are_those_that_are_stored(trained):
    data = open_data(replace(trained.data, val_fraction=0.25), 0)
    for split, positions in (("test", [300, 7]), ("val", [5])):
        stored, _ = data.splits[split].read(tf.constant(positions, tf.int64))
        expected = stored.numpy() / data.test.white
        np.testing.assert_allclose(show_inputs(data, split, positions), expected, atol=1e-6)


def test_without_mistakes_there_is_no_sheet(trained, here, capfd):
    (here / "mistakes.png").write_text("of an earlier evaluation")
    confusion = Confusion([*"0123456789"], (3 * np.eye(10, dtype=int)).tolist())
    report = ClassReport(confusion, [], images=[])
    found = report.describe()
    assert found["mistakes"] == found["confused"] == []
    assert report.draw("one", here, "") == [here / "confusion.png"]
    assert not (here / "mistakes.png").exists()
    assert "no mistakes" in capfd.readouterr().out


def test_of_two_classes_there_is_no_top5(command, tmp_path):
    small = ("model=lenet5", "data=synthetic", "data.num_classes=2", "data.image_size=8", "batch_size=8")
    sizes = ("data.train_examples=16", "data.test_examples=10", "train.steps=1", "run.name=two")
    assert command(*small, *sizes).code == 0
    assert command("job=evaluate", "run.name=two").code == 0
    result = json_of(tmp_path / "runs" / "two", "evaluation")
    assert result["test"].keys() == {"loss", "accuracy"}
    assert len(result["classes"]) == 2


def test_of_too_many_classes_there_are_means_only(here, command, monkeypatch):
    monkeypatch.setattr(classify, "MOST_CLASSES", 9)
    answer = command("job=evaluate", "run.name=one")
    assert answer.code == 0
    assert "10 classes: the table of classes and the pictures are made for up to 9" in answer.out
    assert "classes" not in json_of(here, "evaluation")
    assert "top5" in json_of(here, "evaluation")["test"]


def test_names_that_the_run_did_not_write_are_refused(here, command):
    content = json_of(here, "inputs")
    names = [f"digit {number}" for number in range(10)]
    for count, message in [
        (10, "is not that of the checkpoints: targets.names="),
        (4, "has the names of 4 classes, the"),
    ]:
        targets = {"form": "classes", "names": names[:count]}
        (here / "inputs.json").write_text(json.dumps(content | {"targets": targets}))
        assert_error(command("job=evaluate", "run.name=one"), CheckpointError, f"inputs.json {message}")


@pytest.mark.parametrize("name", ["confusion.png", "mistakes.png"])
def test_a_picture_that_can_not_be_written(name, here, command):
    (here / name).mkdir()
    assert_error(command("job=evaluate", "run.name=one"), CheckpointError, f"{name} can't be written")
