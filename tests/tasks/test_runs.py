"""What holds for runs of both tasks: accumulated, reversed, continued, by replicas, by JAX, verified, exported."""

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import tensorflow as tf

import accumtrain
from accumtrain.data.pipeline import make_train_batches
from accumtrain.dispatch import run
from accumtrain.engine.step import Step
from accumtrain.errors import VerificationError
from accumtrain.export import reload
from accumtrain.tasks import multilabel, regress
from accumtrain.tasks.objective import open_objective
from accumtrain.train.build import build_window
from tests.tasks import canvases
from tests.train.conftest import assert_same_tensors, json_of, records_of, tensors_of

TASKS = {"multilabel": ("task=multilabel", "data=canvas_labels"), "regress": ("task=regress", "data=canvas_numbers")}
METRICS = {"multilabel": {"map", "f1"}, "regress": {"mae", "rmse", "r2"}}
FOUND = {"multilabel": "labels", "regress": "numbers"}  # the key of evaluation.json
SMALL = ("batch_size=32", "accum.steps=2", "data.val_fraction=0.2", "eval.every=3", "log.every=1", "run.name=one")
LENET = ("model=lenet5", "optim=adam", "optim.lr=0.005", *SMALL)
REVNET = ("model=revnet38", "model.units=[1,1]", "model.filters=[8,8,16]", "optim=adam", *SMALL)

both = pytest.mark.parametrize("task", TASKS)


@pytest.fixture(scope="module")
def trained(compose, tmp_path_factory, registered):
    """Trains a run of a task once, and returns the folder that it is in."""
    folder = tmp_path_factory.mktemp("trained")

    @cache
    def train(task):
        run(compose(*TASKS[task], *LENET, "train.steps=6", f"run.dir={folder / task}"))
        return folder / task

    return train


@pytest.fixture
def here(trained, tmp_path, monkeypatch):
    """Copies the run of a task into runs/ of an empty folder, in which the test is."""

    def copied(task):
        monkeypatch.chdir(tmp_path)
        return shutil.copytree(trained(task), tmp_path / "runs") / "one"

    return copied


# ---- training --------------------------------------------------------------------------------------------------------


def updated(config):
    """The losses and the weights of three updates in float64, and the targets of them."""
    objective = open_objective(config)
    data, strategy = objective.data, tf.distribute.get_strategy()
    window = build_window(config, objective, 3, strategy)
    step = Step(window)
    micro_batches = make_train_batches(data, batch=config.batch_size // config.accum.count, first=0, seed=0)
    losses, batches = [], iter(micro_batches)
    for _ in range(3):
        step.accumulate(batches, config.accum.count)
        losses.append(float(step.commit(partial=False)["loss"]))
    taken = list(micro_batches.take(3 * config.accum.count).as_numpy_iterator())
    return losses, [variable.numpy() for variable in window.variables_], np.concatenate([b["targets"] for b in taken])


@pytest.mark.slow
@both
def test_micro_batches_learn_what_one_batch_does(task, compose):
    """In float64, with unknown targets, which are spread over the micro-batches unevenly."""

    def of(steps):
        given = ("model=lenet5", "optim=adam", "batch_size=48", "precision=float64", f"accum.steps={steps}")
        return updated(compose(*TASKS[task], *given))

    losses, weights, targets = of(1)
    unknown = np.isnan(targets[:48]).reshape(8, -1).sum(axis=1)
    assert unknown.sum() > 0
    assert len(set(unknown.tolist())) > 1
    for steps in (2, 4, 8):
        their_losses, theirs, their_targets = of(steps)
        assert np.array_equal(targets, their_targets, equal_nan=True), "the same examples"
        assert their_losses == pytest.approx(losses, rel=1e-12)
        for own, other in zip(weights, theirs, strict=True):
            assert own.dtype == np.float64
            np.testing.assert_allclose(other, own, rtol=0, atol=1e-12 * np.abs(own).max())


@pytest.mark.slow
@both
def test_reversed_activations_have_the_records_of_stored_ones(task, compose, tmp_path):
    for memory in ("store", "reverse"):
        own = (*TASKS[task], *REVNET, "train.steps=4", f"model.memory={memory}", f"run.dir={tmp_path / memory}")
        run(compose(*own))
    stored, reversed_ = tmp_path / "store/one", tmp_path / "reverse/one"
    assert records_of(reversed_) == records_of(stored)
    assert_same_tensors(state_of(reversed_, 4), state_of(stored, 4))


def state_of(folder, step):
    return tensors_of(folder / f"checkpoints/step-{step}")


@pytest.mark.slow
@both
def test_a_killed_run_goes_on_with_the_same_bits(task, compose, trained, tmp_path, train_until_killed):
    """Killed after update 4, so that update 3, which was evaluated, is the state that it goes on from."""
    config = compose(*TASKS[task], *LENET, "train.steps=6", "checkpoint.every=1", f"run.dir={tmp_path}")
    train_until_killed(config, 4)
    kept = json_of(tmp_path / "one/checkpoints/step-4", "manifest")
    assert records_of(tmp_path / "one")[-1]["step"] == 4
    run(config)
    whole = trained(task) / "one"
    assert records_of(tmp_path / "one") == records_of(whole)
    assert_same_tensors(state_of(tmp_path / "one", 6), state_of(whole, 6))
    facts = json_of(whole / "checkpoints/step-6", "manifest").get("answers")
    assert json_of(tmp_path / "one/checkpoints/step-6", "manifest").get("answers") == facts
    assert bool(facts) == bool(kept.get("answers")) == (task == "multilabel"), "thresholds"


@pytest.mark.slow
@both
def test_thresholds_of_the_last_evaluation_stay_over_a_resume(task, compose, tmp_path, train_until_killed):
    """Update 4 is made after a resume, and there is no evaluation until the end."""
    given = (*TASKS[task], *LENET, "checkpoint.every=1", "schedule=constant", f"run.dir={tmp_path}")
    run(compose(*given, "train.steps=3"))
    before = json_of(tmp_path / "one/checkpoints/step-3", "manifest").get("answers")
    train_until_killed(compose(*given, "train.steps=6"), 1)
    assert json_of(tmp_path / "one/checkpoints/step-4", "manifest").get("answers") == before


# ---- other devices ---------------------------------------------------------------------------------------------------


def near(expected, found, tolerance):
    """Nested values of evaluation.json are the same, numbers to a tolerance."""
    if isinstance(expected, dict):
        return expected.keys() == found.keys() and all(near(expected[key], found[key], tolerance) for key in expected)
    if isinstance(expected, list):
        return len(expected) == len(found) and all(map(near, expected, found, [tolerance] * len(found)))
    if isinstance(expected, float):
        return found == pytest.approx(expected, abs=tolerance)
    return found == expected


def by_name(result, task):
    return {each["name"]: each for each in result[FOUND[task]]}


@pytest.mark.slow
@both
def test_two_replicas_measure_what_one_does(task, here, command):
    """The 90 test examples in batches of 32, of which the last is filled up."""
    folder = here(task)
    assert command("job=evaluate", *TASKS[task], "run.name=one").code == 0
    alone = json_of(folder, "evaluation")
    mirrored = ("job=evaluate", *TASKS[task], "run.name=one", "device=mirrored", "device.virtual=2")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-m", "tests.tasks.canvases", *mirrored], env=environment, check=True)
    together = json_of(folder, "evaluation")
    assert alone["test"].keys() == {"loss"} | METRICS[task]
    assert near(alone["test"], together["test"], 1e-6)
    assert near(by_name(alone, task), by_name(together, task), 1e-6)


@pytest.mark.slow
@both
def test_two_replicas_learn_what_one_does(task, here):
    """From the first examples to the thresholds."""
    folder = here(task)
    own = (*TASKS[task], *LENET, "train.steps=6", "run.dir=mirrored", "device=mirrored", "device.virtual=2")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-m", "tests.tasks.canvases", *own], env=environment, check=True)
    for split in ("train", "val", "test"):
        found, expected = (records_of(each, split) for each in (Path("mirrored/one"), folder))
        assert near(expected, found, 1e-3), split
    facts = [json_of(each / "checkpoints/step-6", "manifest").get("answers") for each in (Path("mirrored/one"), folder)]
    assert near(*facts, 1e-3)


@pytest.mark.slow
@pytest.mark.xla
@both
def test_jax_measures_what_tensorflow_does(task, here, command):
    pytest.importorskip("jax")
    folder = here(task)
    assert command("job=evaluate", *TASKS[task], "run.name=one").code == 0
    expected = json_of(folder, "evaluation")
    answer = command("job=evaluate", *TASKS[task], "run.name=one", "device=cpu", "device.runtime=jax")
    assert answer.code == 0, answer.err
    found = json_of(folder, "evaluation")
    assert near(expected["test"], found["test"], 1e-5)
    assert near(by_name(expected, task), by_name(found, task), 1e-5)


@pytest.mark.slow
@pytest.mark.xla
@both
def test_jax_trains(task, here, compose):
    pytest.importorskip("jax")
    folder = here(task)
    run(compose(*TASKS[task], *LENET, "train.steps=6", "run.dir=jax", "device=cpu", "device.runtime=jax"))
    for split in ("train", "val", "test"):
        assert near(records_of(folder, split), records_of(Path("jax/one"), split), 1e-3), split


# ---- answers ---------------------------------------------------------------------------------------------------------


def images_of_test():
    """Those of the test split, as they are stored: 0..16."""
    return canvases.compose(canvases.load_digits()[1], 90, seed=1)[0]


@pytest.mark.slow
@both
def test_a_loaded_run_answers_as_the_jobs_do(task, here, command):
    folder = here(task)
    assert command("job=evaluate", *TASKS[task], "run.name=one").code == 0
    told = json_of(folder, "evaluation")
    loaded = accumtrain.load_run("one")
    result = loaded.evaluate()
    for key in ("test", FOUND[task]):
        assert result[key] == told[key]
    assert told["test"] == {name: records_of(folder, "test")[-1][name] for name in told["test"]}
    assert all(Path(picture).stat().st_size for picture in told["pictures"])
    picture = tf.io.encode_png(images_of_test()[0] * 15)
    Path("canvas.png").write_bytes(picture.numpy())
    predicted = loaded.predict("canvas.png")
    assert command("job=predict", *TASKS[task], "run.name=one", "predict.input=canvas.png").code == 0
    (line,) = (folder / "predictions.jsonl").read_text().splitlines()
    assert json.loads(line) == {"file": "canvas.png", **predicted.records[0]}
    assert predicted.answers.shape == (1, len(predicted.names))


@both
def test_answers_give_the_scores_of_the_evaluation(task, here):
    """From the images to the metrics by definitions that are written here."""
    here(task)
    loaded = accumtrain.load_run("one")
    found = loaded.predict(images_of_test()).answers
    _, labels, numbers = canvases.compose(canvases.load_digits()[1], 90, seed=1)
    truth = labels if task == "multilabel" else numbers
    truth[np.random.default_rng([7, 1]).random(truth.shape) < 0.1] = np.nan
    result = loaded.evaluate()
    for name, own, true in zip(loaded.class_names, found.T, truth.T, strict=True):
        known = ~np.isnan(true)
        own, true = own[known], true[known]
        told = by_name(result, task)[name]
        assert told["examples"] == known.sum()
        if task == "regress":
            assert told["mae"] == pytest.approx(np.mean(np.abs(own - true)), rel=1e-4)
            assert told["rmse"] == pytest.approx(np.mean((own - true) ** 2) ** 0.5, rel=1e-4)
        else:
            said = own >= np.float32(told["threshold"])
            assert told["with_it"] == true.sum()
            assert told["recall"] == pytest.approx(true[said].sum() / true.sum(), abs=1.01 / true.sum())


EXPORTS = {
    "savedmodel": lambda folder: folder / "savedmodel",
    "tflite": lambda folder: folder / "one.tflite",
    "onnx": lambda folder: folder / "one.onnx",
}


@pytest.mark.slow
@pytest.mark.filterwarnings(r"ignore:\s+Warning")  # of the interpreter in TensorFlow
@pytest.mark.parametrize("kind", EXPORTS)
@both
def test_an_export_answers_as_the_run(task, kind, here, command):
    if kind == "onnx":
        pytest.importorskip("tf2onnx")
        pytest.importorskip("onnxruntime")
    folder = here(task)
    answer = command("job=export", *TASKS[task], "run.name=one", f"export.format={kind}")
    assert answer.code == 0, answer.err
    path = EXPORTS[kind](folder)
    load = {"savedmodel": reload.load_saved_model, "tflite": reload.load_tflite, "onnx": reload.load_onnx}[kind]
    names, predict = load(str(path))
    loaded = accumtrain.load_run("one")
    images = images_of_test()
    expected = loaded.predict(images / 255).answers  # exports take pixels of 0..255
    assert names == loaded.class_names
    np.testing.assert_allclose(predict(images), expected, atol=1e-4 * np.abs(expected).max())
    result = json_of(folder, "export")
    if task == "multilabel":
        thresholds = json_of(Path(result["checkpoint"]).parent, "manifest")["answers"]["thresholds"]
        assert result["thresholds"] == thresholds
        if kind == "savedmodel":
            assert json.loads((path / "assets/thresholds.json").read_text()) == thresholds
        elif kind == "tflite":
            assert json.loads(ZipFile(path).read("thresholds.json")) == thresholds


@pytest.mark.slow
@both
def test_a_keras_model_is_exported_as_keras_layers(task, compose, command, tmp_path):
    given = ("model=keras", "model.name=MobileNet", "model.args={alpha:0.25}", "data.image_size=32")
    run(compose(*TASKS[task], *given, *SMALL, "optim=adam", "train.steps=3", f"run.dir={tmp_path / 'runs'}"))
    answer = command("job=export", *TASKS[task], "run.name=one", "export.format=keras")
    assert answer.code == 0, answer.err
    names, predict = reload.load_keras(tmp_path / "runs/one/one.keras")
    loaded = accumtrain.load_run("one")
    images = images_of_test()
    expected = loaded.predict(images / 255).answers  # exports take pixels of 0..255
    assert names == loaded.class_names
    np.testing.assert_allclose(predict(images), expected, atol=1e-4 * np.abs(expected).max())


DECODERS = {
    "classify": ("model=decoder_tiny", "data.label_column=kind"),
    "multilabel": ("model=revdecoder_tiny", "data.label_column=[cat,dog]"),
    "regress": ("model=revdecoder_tiny", "data.label_column=words"),
}


@pytest.mark.slow
@pytest.mark.parametrize("task", DECODERS)
def test_a_decoder_answers_for_texts_at_another_length_and_exported(task, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ("cat", "dog", "sun")
    texts = [" ".join(names[place * (1 + step) % 3] for step in range(1 + place % 5)) for place in range(60)]
    rows = [
        {"text": text, "kind": text[:3], "cat": int("cat" in text), "dog": int("dog" in text), "words": text.count(" ")}
        for text in texts
    ]
    Path("t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = (f"task={task}", *DECODERS[task], "model.width=16", "data=table", "data.path=t.jsonl", "data.length=20")
    more = ("data.text_column=text", "batch_size=8", "accum.steps=2", "train.steps=4", "run.name=one")
    assert command(*given, *more).code == 0
    for longer in ((), ("data.length=30",)):
        answer = command("job=evaluate", "run.name=one", *longer)
        assert answer.code == 0, answer.err
    found, longer = (json_of(Path("runs/one"), name)["test"] for name in ("evaluation", "evaluation-length30"))
    assert longer["loss"] == pytest.approx(found["loss"], rel=1e-5), "padding changes nothing"
    answer = command("job=export", "run.name=one")
    assert answer.code == 0, answer.err
    tokens = np.full([2, 20], -1, np.int32)
    tokens[0, :3], tokens[1, :7] = [*b"cat"], [*b"dog cat"]
    _, predict = reload.load_saved_model("runs/one/savedmodel")
    np.testing.assert_allclose(predict(tokens), accumtrain.load_run("one").predict(tokens).answers, rtol=1e-4)


# ---- verified --------------------------------------------------------------------------------------------------------

VERIFY = ("job=verify", "model=lenet5", "optim=sgd", "batch_size=8", "accum.steps=2", "run.name=one")
FAULTS = {
    "multilabel": (multilabel, "build_loss"),
    "regress": (regress, "build_squared_error"),
}


def without_unknown(build):
    """A loss whose mean is over the known targets of an example, not over all."""

    def wrong(config):
        right = build(config)

        def loss(targets, outputs):
            known = tf.reduce_mean(tf.cast(~tf.math.is_nan(targets), outputs.dtype), axis=-1)
            return right(targets, outputs) / known

        return loss

    return wrong


def a_thousandth_more(build):
    return lambda config: lambda targets, outputs: 1.001 * build(config)(targets, outputs)


@pytest.mark.slow
@both
def test_verify_passes(task, compose, tmp_path):
    checks = run(compose(*VERIFY, *TASKS[task], f"run.dir={tmp_path}"))["checks"]
    assert "loss against an independent formula, in float64" in [each["check"] for each in checks if each["passed"]]


@pytest.mark.slow
@pytest.mark.parametrize("fault", [without_unknown, a_thousandth_more])
@both
def test_verify_finds_a_planted_fault(task, fault, compose, tmp_path, monkeypatch):
    place, name = FAULTS[task]
    monkeypatch.setattr(place, name, fault(getattr(place, name)))
    with pytest.raises(VerificationError, match="loss against an independent formula, in float64"):
        run(compose(*VERIFY, *TASKS[task], f"run.dir={tmp_path}"))
