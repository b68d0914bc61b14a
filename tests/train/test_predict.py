"""job=predict: the answers of an evaluation, for files; bad files; where the answers go."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import yaml
from PIL import Image

from accumtrain.config.read import from_mapping, to_mapping
from accumtrain.dispatch import run
from accumtrain.errors import CheckpointError, ConfigError, DataError, Preempted
from accumtrain.runs.checkpoint_store import seal_manifest
from accumtrain.runs.names import MARK, learned_values
from accumtrain.tasks.answer import AnswersInWords
from accumtrain.train.trained import predict
from tests.train.conftest import assert_error, json_of

NAMES = ("ant", "bee", "cat")
SMALL = (
    *("model=lenet5", "optim=adam", "optim.lr=1e-2"),
    *("batch_size=8", "accum.steps=2", "train.steps=20", "eval.every=20"),
)
PREDICT = ("job=predict", "run.name=plain", "predict.input=new")
VARIANTS = {
    "plain": ("data.mean=[0.4,0.5,0.6]",),
    "resized": ("data.image_size=12", "ema.decay=0.5"),
    "central": ("data.image_size=12", "data.augment=inception", "model.memory=recompute"),
}


def png(label: int, number: int, height: int = 9, width: int = 10) -> bytes:
    """A picture that is brighter the larger its label."""
    pixels = np.random.default_rng([label, number]).integers(0, 80, [height, width, 3]) + 80 * label
    return tf.io.encode_png(pixels.astype(np.uint8)).numpy()


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures") / "photos"
    for split, first, count in (("train", 0, 8), ("test", 50, 5)):
        for label, name in enumerate(NAMES):
            (root / split / name).mkdir(parents=True)
            for number in range(first, first + count):
                (root / split / name / f"{number}.png").write_bytes(png(label, number))
    return root


@pytest.fixture(scope="module")
def runs(photos, compose):
    """A folder with a run of each variant."""
    folder = photos.parent / "runs"
    for name, variant in VARIANTS.items():
        run(compose(f"run.dir={folder}", f"run.name={name}", "data=folder", f"data.path={photos}", *SMALL, *variant))
    return folder


@pytest.fixture
def here(runs, tmp_path, monkeypatch):
    """A working directory with the run `plain`, and with pictures."""
    shutil.copytree(runs / "plain", tmp_path / "runs" / "plain")
    for file in (tmp_path / "runs" / "plain").glob("predict*"):
        file.unlink()
    (tmp_path / "new" / "sub").mkdir(parents=True)
    for label in range(3):
        (tmp_path / "new" / "sub" / f"{label}.PNG").write_bytes(png(label, 99, height=30, width=7))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("name", VARIANTS)
def test_predict_equals_evaluate(name, runs, photos, compose):
    """Loss and accuracy of the predictions for the test images are those that the evaluation finds."""
    keys = (f"run.dir={runs}", f"run.name={name}", "data=folder", f"data.path={photos}", *SMALL, *VARIANTS[name])
    evaluation = run(compose("job=evaluate", *keys))
    result = run(compose("job=predict", f"predict.input={photos}/test", "predict.top=3", *keys))
    answers = lines(runs / name / "predictions.jsonl")
    truth = [Path(answer["file"]).parent.name for answer in answers]
    told = [{each["class"]: each["probability"] for each in answer["top"]} for answer in answers]
    found = [answer["class"] == name for answer, name in zip(answers, truth, strict=True)]
    losses = [-math.log(each[name]) for each, name in zip(told, truth, strict=True)]
    assert result["examples"] == len(answers) == 15
    assert np.mean(found) == evaluation["test"]["accuracy"]
    assert np.mean(losses) == pytest.approx(evaluation["test"]["loss"], rel=1e-5)
    assert result["checkpoint"] == evaluation["checkpoint"]
    assert evaluation["test"]["accuracy"] > 0.5


def test_table_and_files(here, command):
    answer = command(*PREDICT, "predict.top=2")
    assert answer.code == 0, answer.err
    assert "image          class  probability  or" in answer.out
    assert "new/sub/2.PNG  cat" in answer.out
    rows = list(csv.DictReader((here / "runs/plain/predictions.csv").read_text().splitlines()))
    assert list(rows[0]) == ["file", "class", "probability", "class_2", "probability_2"]
    objects = lines(here / "runs/plain/predictions.jsonl")
    assert [row["file"] for row in rows] == [each["file"] for each in objects] == [f"new/sub/{n}.PNG" for n in range(3)]
    assert [float(row["probability"]) for row in rows] == [each["probability"] for each in objects]
    assert all(0 < each["probability"] <= 1 and len(each["top"]) == 2 for each in objects)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        *((text, f"'{text}") for text in ("=1+1", "+cmd|x", "-1+1", "@SUM(A1)", "--1", "=", "-")),
        ("\t=1", r"'\t=1"),
        ("\r=1", r"'\r=1"),
        ("a\x1b[2J\n", r"a\x1b[2J\n"),
        *((text, text) for text in ("-1.5", "+2e3", "a=b", "", "caf\u00e9", " =1", "'")),
    ],
)
def test_a_spreadsheet_computes_no_text_of_a_table(text, shown):
    answers = AnswersInWords([text], [[0.5], [text]], [{}, {}], [], [], {})
    table = [*csv.reader(predict._csv(["a.png", text], answers, raw=False).splitlines())]
    assert table == [["file", shown], ["a.png", "0.5"], [shown, shown]]
    assert text in predict._csv(["a.png", "b.png"], answers, raw=True)


def test_other_cells_of_rows_stand_behind_the_answers():
    answers = AnswersInWords(
        ["class", "class_2"], [["a", "b"], ["b", "a"]], [{"class": "a"}, {"class": "b"}], [], [], {}
    )
    rows = [{"id": "007", "class": "=1"}, {"given_class": None, "tags": ["x", "y"]}]
    copied = predict.copy_others(rows, answers)
    assert copied == [{"id": "007", "given_class": "=1"}, {"given_given_class": None, "tags": ["x", "y"]}]
    table = [*csv.reader(predict._csv(["t.csv, row 2", "t.csv, row 3"], answers, copied, raw=False).splitlines())]
    assert table == [
        ["file", "class", "class_2", "id", "given_class", "given_given_class", "tags"],
        ["t.csv, row 2", "a", "b", "007", "'=1", "", ""],
        ["t.csv, row 3", "b", "a", "", "", "", '["x", "y"]'],
    ]
    written = [json.loads(line) for line in predict._jsonl(["one", "two"], answers, copied).splitlines()]
    assert written[0] == {"file": "one", "class": "a", "id": "007", "given_class": "=1"}
    assert [*predict.copy_others([], answers)] == []


@pytest.mark.parametrize("pattern", ["new/**", "new/**/*", "ne*"])
def test_a_glob_of_folders_and_files_names_each_image_once(pattern, here, command):
    (here / "new/sub/deeper").mkdir()
    shutil.copy(here / "new/sub/0.PNG", here / "new/sub/deeper/3.PNG")
    answer = command(*PREDICT[:2], f"predict.input={pattern}")
    assert answer.code == 0, answer.err
    files = [each["file"] for each in lines(here / "runs/plain/predictions.jsonl")]
    assert sorted(files) == [*(f"new/sub/{n}.PNG" for n in range(3)), "new/sub/deeper/3.PNG"]


def test_the_data_is_not_needed(here, command):
    """The names come from inputs.json, although data.path is elsewhere by now."""
    config = here / "runs/plain/config.yaml"
    config.write_text(config.read_text().replace("path: ", "path: /nowhere"))
    assert json_of(here / "runs/plain", "inputs") == {
        "inputs": {"kind": "pixels", "shape": [9, 10, 3]},
        "targets": {"form": "classes", "names": [*NAMES]},
        "facts": {},
    }
    assert command(*PREDICT).code == 0


def test_a_run_of_earlier_versions_looks_at_its_data(here, command, photos):
    (here / "runs/plain/inputs.json").unlink()
    assert command(*PREDICT).code == 0
    assert {each["class"] for each in lines(here / "runs/plain/predictions.jsonl")} <= set(NAMES)
    config = here / "runs/plain/config.yaml"
    config.write_text(config.read_text().replace(f"path: {photos}", "path: /nowhere"))
    answer = command(*PREDICT)
    assert_error(answer, DataError, "is not a directory")


def test_classes_without_names_are_numbers(here, command):
    assert command("run.name=numbers", "train.steps=1", "model=lenet5").code == 0
    assert json_of(here / "runs/numbers", "inputs")["targets"]["names"] == [*"0123456789"]
    assert command("job=predict", "run.name=numbers", "predict.input=new/sub/0.PNG", "predict.top=99").code == 0
    (answer,) = lines(here / "runs/numbers/predictions.jsonl")
    assert sorted(each["class"] for each in answer["top"]) == [*"0123456789"]


def test_bad_files_are_named_and_the_others_answered(here, command):
    (here / "new/empty.png").write_bytes(b"")
    (here / "new/text.jpg").write_text("hello")
    (here / "new/cut.png").write_bytes(png(1, 1)[:100])
    (here / "new/notes.txt").write_text("x")
    os.mkfifo(here / "new/pipe.png")
    answer = command(*PREDICT)
    assert_error(answer, DataError, "error: 4 of 7 images can't be used, runs/plain/predict.json names them")
    assert "data.on_error=skip" in answer.err
    assert "new/notes.txt" in answer.out
    result = json_of(here / "runs/plain", "predict")
    reasons = {Path(each["name"]).name: each["reason"] for each in result["bad"]["examples"]}
    assert reasons.keys() == {"empty.png", "text.jpg", "cut.png", "pipe.png"}
    assert reasons["empty.png"] == "is empty"
    assert len(lines(here / "runs/plain/predictions.jsonl")) == result["examples"] == 3
    answer = command(*PREDICT, "data.on_error=skip")
    assert answer.code == 0
    assert "warning: 4 of 7 images can't be used" in answer.err


TARGETS = '"targets": {"form": "classes", "names": ["a", "b"]}, "facts": {}'


IMAGES = '"inputs": {"kind": "pixels", "shape": [9, 10, 3]}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f'{{"inputs": {{"kind": "pixels", "shape": [9, 10]}}, {TARGETS}}}',
            "inputs.shape=[9,10]: must be height, width",
        ),
        (f'{{"inputs": {{"kind": "pixels", "shape": [9, 0, 3]}}, {TARGETS}}}', "inputs.shape[1]=0: must be at least 1"),
        (
            f'{{"inputs": {{"kind": "pixels", "shape": [{2**62}, 1, 3]}}, {TARGETS}}}',
            f"inputs.shape[0]={2**62}: must be",
        ),
        (f'{{"inputs": {{"kind": "pixels", "shape": [{10**9}, {10**9}, 3]}}, {TARGETS}}}', "fewer than 2**31 values"),
        (f'{{"inputs": {{"kind": "tokens", "shape": [9]}}, {TARGETS}}}', "inputs.vocabulary=null: must be a mapping"),
        (f'{{"inputs": {{"shape": [9, 10, 3]}}, {TARGETS}}}', "inputs.kind is missing: must be text"),
        (f'{{{IMAGES}, "targets": {{"form": "classes", "names": []}}, "facts": {{}}}}', "targets.names is empty"),
        (
            f'{{{IMAGES}, "targets": {{"form": "classes", "names": [1]}}, "facts": {{}}}}',
            "targets.names[0]=1: must be text",
        ),
        (f'{{{IMAGES}, "targets": {{"form": "classes", "names": ["\\ud800"]}}, "facts": {{}}}}', "is half a character"),
        (f"{{{IMAGES}}}", "targets is missing: must be a mapping"),
        (f"{{{IMAGES}, {IMAGES}, {TARGETS}}}", "it holds the key inputs twice"),
        ("{", "Expecting property name"),
        ("[" * 100_000, "it is nested more than 50 deep"),
    ],
)
def test_damaged_inputs_json(text, message, here, command):
    (here / "runs/plain/inputs.json").write_text(text)
    answer = command(*PREDICT)
    assert_error(answer, CheckpointError, "runs/plain/inputs.json is damaged: ")
    assert message in answer.err


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("inputs", {"shape": [9000, 10, 3]}, "inputs.json is not that of the checkpoints: shape="),
        ("targets", {"names": ["a"]}, "inputs.json has the names of 1 classes, the checkpoints have"),
        ("targets", {"form": "labels"}, "targets.form=labels: must be classes, as task=classify has; run its training"),
        ("targets", {"names": ["x", "y", "z"]}, "inputs.json is not that of the checkpoints: targets.names="),
    ],
)
def test_inputs_json_of_another_run(part, changes, message, here, command):
    file = here / "runs/plain/inputs.json"
    content = json.loads(file.read_text())
    content[part] |= changes
    file.write_text(json.dumps(content))
    assert_error(command(*PREDICT), CheckpointError, message)


def test_a_model_that_its_checkpoint_can_not_hold_is_not_built(here, command, compose):
    model = compose("model=resnet20", "model.units=[1,1,100000000]").model
    config, manifest = here / "runs/plain/config.yaml", here / "runs/plain/checkpoints/step-20/manifest.json"
    values = yaml.safe_load(config.read_text()) | {"model": to_mapping(model)}
    config.write_text(yaml.safe_dump(values))
    learned = learned_values(to_mapping(from_mapping(values)))
    manifest.write_text(seal_manifest(json.loads(manifest.read_text()) | {"learned": learned}))
    message = "are damaged: model.units=[1,1,100000000], and they hold "
    for arguments in (PREDICT, ("run.name=plain", "train.steps=30")):
        assert_error(command(*arguments), CheckpointError, message)


@pytest.mark.slow
def test_several_replicas_answer_in_the_same_order(here, command):
    for number in range(7):
        (here / "new" / f"{number}.png").write_bytes(png(number % 3, number))
    assert command(*PREDICT, "predict.output=one.jsonl").code == 0
    mirrored = ("predict.output=two.jsonl", "device=mirrored", "device.virtual=2")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-m", "accumtrain", *PREDICT, *mirrored], env=environment, check=True)
    one, two = lines(here / "one.jsonl"), lines(here / "two.jsonl")
    assert [each["file"] for each in one] == [each["file"] for each in two]
    assert [each["probability"] for each in two] == pytest.approx([each["probability"] for each in one], abs=1e-6)


def test_an_animation_is_answered_when_one_image_is_saved_as_the_message_says(here, command):
    """data.on_error=skip would leave no image, so the message does not advise it."""
    arguments = ("job=predict", "run.name=plain", "data.on_error=skip")
    with Image.open(here / "new" / "sub" / "0.PNG") as picture:
        picture.save(here / "one.gif", save_all=True, append_images=[picture.rotate(90)])
    answer = command(*arguments, "predict.input=one.gif")
    assert answer.code == DataError.exit_code
    kinds = "PNG, JPEG, WebP, TIFF, GIF or BMP"
    assert f"is a GIF of several images, not a single one: replace it by a {kinds}, or remove it" in answer.err
    assert "on_error" not in answer.err
    with Image.open(here / "one.gif") as gif:
        gif.save(here / "one.png")
    assert command(*arguments, "predict.input=one.png").code == 0


@pytest.mark.parametrize(
    ("override", "error", "words"),
    [
        ("predict.input=text.jpg", DataError, "error: none of 1 examples can be used, the first: text.jpg has no"),
        ("predict.input=null", ConfigError, "predict.input=null: say which images"),
        ("predict.input=''", ConfigError, "predict.input is empty"),
        ("predict.input=nowhere", DataError, "predict.input=nowhere: no such file or folder"),
        ("predict.input='no*.png'", DataError, "no such file or folder"),
        ("predict.input=runs/plain/tensorboard", DataError, "holds no image; save some as files"),
        ("predict.top=0", ConfigError, "predict.top=0: must be at least 1"),
        ("predict.output=mine.txt", ConfigError, "mine.txt: ends in neither .csv nor .jsonl"),
        ("predict.output=new/sub/0.PNG/mine.csv", ConfigError, "can't be used"),
        ("run.name=nobody", CheckpointError, "train first"),
        ("model=resnet20", ConfigError, "the run in runs/plain was trained with"),
    ],
)
def test_mistakes(override, error, words, here, command):
    (here / "text.jpg").write_text("hello")
    assert_error(command(*PREDICT, override), error, words)


@pytest.mark.parametrize("output", ["out/mine.csv", "out/mine.jsonl", "out"])
def test_output(output, here, command):
    arguments = ("job=predict", "run.name=plain", "predict.input='new/**/*.PNG'")
    assert command(*arguments, f"predict.output={output}").code == 0
    written = {path.name for path in (here / "out").iterdir()}
    answers = {Path(output).name} if "." in output else {"predictions.csv", "predictions.jsonl"}
    assert written == {*answers, MARK}, "a new folder of answers is no data"
    assert not list((here / "runs/plain").glob("predictions.*"))


def test_answers_of_the_last_state_have_names_of_their_own(here, command):
    assert command(*PREDICT, "state=last").code == 0
    written = {path.name for path in (here / "runs/plain").glob("predict*")}
    assert written == {"predictions_last.csv", "predictions_last.jsonl", "predict_last.json"}


def test_ctrl_c_leaves_the_answers_so_far(here, compose, monkeypatch):
    for number in range(40):
        (here / "new" / f"{number}.png").write_bytes(png(0, number))
    all_predictions = predict.predictions

    def with_a_signal(*args, **kwargs):
        for predicted in all_predictions(*args, **kwargs):
            os.kill(os.getpid(), signal.SIGINT)
            yield predicted

    monkeypatch.setattr(predict, "predictions", with_a_signal)
    keys = ("run.dir=runs", "run.name=plain", "data=folder", "data.path=new", *SMALL, *VARIANTS["plain"])
    with pytest.raises(Preempted, match="stopped after 4 of 43 images"):
        run(compose("job=predict", "predict.input=new", *keys))
    assert len(lines(here / "runs/plain/predictions.jsonl")) == 4
    assert json_of(here / "runs/plain", "predict")["status"] == "preempted"
