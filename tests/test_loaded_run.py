"""`accumtrain.load_run` answers as the jobs predict and evaluate do, and says what it can't load."""

import csv
import json
import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from omegaconf import OmegaConf
from PIL import Image

import accumtrain
from accumtrain.data.open_data import open_data
from accumtrain.dispatch import run
from accumtrain.errors import CheckpointError, ConfigError, DataError
from accumtrain.runs.run import Run

SMALL = ("model=lenet5", "optim=adam", "optim.lr=1e-2", "batch_size=12", "accum.steps=2", "train.steps=12")
NAMES = ("ant", "bee", "cat")


def pixels(label, number, height=9, width=10):
    drawn = np.random.default_rng([label, number]).integers(0, 80, [height, width, 3]) + 80 * label
    return drawn.astype(np.uint8)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, compose):
    """A folder with photos/, and in runs/ the run `bugs` with a better state than its last."""
    folder = tmp_path_factory.mktemp("loaded")
    for label, name in enumerate(NAMES):
        for split, numbers in (("train", range(8)), ("test", range(50, 55))):
            (folder / "photos" / split / name).mkdir(parents=True)
            for number in numbers:
                Image.fromarray(pixels(label, number)).save(folder / "photos" / split / name / f"{number}.png")
    run(
        compose(
            *SMALL, "eval.every=3", "data=folder", f"data.path={folder / 'photos'}", f"run.dir={folder / 'runs'}",
            "run.name=bugs", "data.mean=[0.4,0.5,0.6]", "ema.decay=0.5",
        )
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def loaded(trained):
    return accumtrain.load_run("bugs", run_dir=trained / "runs")


def test_results_are_shown_in_a_line(trained, loaded, capsys):
    found = loaded.predict(trained / "photos" / "test")
    assert repr(found) == "<accumtrain predictions: 15 examples by ant, bee, cat>"
    measured = loaded.evaluate()
    means = measured["test"]
    assert repr(measured).startswith(
        f"<accumtrain evaluation, test: loss {means['loss']:.4f}, accuracy {means['accuracy']:.4f}; its keys: status, "
    )
    assert len(repr(measured)) < 250
    loaded.model.summary()
    shown = capsys.readouterr().out
    assert shown.startswith(f"{loaded.model.params:,} trained parameters\n")
    assert len(shown.splitlines()) == 2 + len(loaded.model.segments)


def test_predictions_as_a_table_of_pandas(trained, loaded, monkeypatch):
    found = loaded.predict(trained / "photos" / "test")
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=dict))
    columns = found.to_pandas()
    assert list(columns) == ["file", "class", *NAMES]
    assert columns["class"] == found.classes
    assert columns["bee"].tolist() == found.answers[:, 1].tolist()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"^to_pandas needs pandas, which is not installed: pip install pandas$"):
        found.to_pandas()


@pytest.fixture
def here(trained, tmp_path, monkeypatch):
    shutil.copytree(trained / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files_of(folder):
    return {str(file): file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()}


def test_it_is_the_run(loaded, trained):
    summary = json.loads((trained / "runs/bugs/summary.json").read_text())
    assert loaded.summary == summary
    assert loaded.step == summary["best_step"]
    assert (loaded.shape, loaded.class_names) == ((9, 10, 3), list(NAMES))
    assert loaded.config.data.path == str(trained / "photos")
    records = [json.loads(line) for line in (trained / "runs/bugs/metrics.jsonl").read_text().splitlines()]
    assert loaded.metrics == records
    assert repr(loaded).endswith(f"bugs: lenet5, best state, update {loaded.step}>")
    assert loaded.model(tf.zeros([2, 9, 10, 3])).shape == [2, 3]


def test_it_answers_as_the_jobs_do(loaded, trained, here, command, capfd):
    """To the bit, without a word, and without a file."""
    before = files_of(trained)
    capfd.readouterr()
    found, result = loaded.predict(trained / "photos/test"), loaded.evaluate()
    assert capfd.readouterr() == ("", "")
    assert files_of(trained) == before
    assert command("job=evaluate", "run.name=bugs").code == 0
    told = json.loads((here / "runs/bugs/evaluation.json").read_text())
    times = {"seconds", "examples_per_second", "checkpoint", "pictures"}
    assert {key: value for key, value in result.items() if key not in times} == {
        key: value for key, value in told.items() if key not in times
    }
    assert command("job=predict", "run.name=bugs", f"predict.input={trained / 'photos/test'}").code == 0
    rows = list(csv.DictReader((here / "runs/bugs/predictions.csv").read_text().splitlines()))
    assert (found.files, found.classes) == ([row["file"] for row in rows], [row["class"] for row in rows])
    np.testing.assert_allclose(found.probabilities.max(axis=1), [float(row["probability"]) for row in rows], rtol=1e-6)
    assert (found.probabilities.shape, found.probabilities.dtype) == ((15, 3), np.float32)
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1, rtol=1e-5)


def test_arrays_and_files_have_the_same_answer(loaded, trained):
    files = sorted((trained / "photos/test").rglob("*.png"))
    from_files = loaded.predict([str(file) for file in files])
    array = np.stack([np.asarray(Image.open(file)) for file in files])
    for given in (array, array.astype(np.int64), tf.constant(array), [*array]):
        from_array = loaded.predict(given)
        assert np.array_equal(from_array.probabilities, from_files.probabilities)
        assert from_array.files == []
    in_floats = loaded.predict(array / 255)
    np.testing.assert_allclose(in_floats.probabilities, from_files.probabilities, atol=1e-5)
    assert loaded.predict(pixels(2, 99, height=30, width=7)[np.newaxis]).probabilities.shape == (1, 3)


def test_integers_of_digits_are_as_in_the_data(compose, tmp_path):
    """Their white is 16, and arrays of load_digits have the answers of the evaluation."""
    run(compose(*SMALL, "eval.every=12", f"run.dir={tmp_path}", "run.name=digits"))
    digits = accumtrain.load_run("digits", run_dir=tmp_path)
    _, (images, labels) = accumtrain.keras.load_digits()
    right = np.array(digits.predict(images).classes) == labels.astype(str)
    assert right.mean() == digits.summary["test"]["accuracy"]
    with pytest.raises(DataError, match=r"values 255 to 255 of int64: give floats 0..1, or integers 0..16"):
        digits.predict(np.full([1, 8, 8], 255))


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (np.zeros([2, 9, 10]), r"images is an array \[2, 9, 10\] of float64: give numbers \[N, height, width, 3\]"),
        (np.zeros([0, 9, 10, 3]), "give numbers"),
        (np.zeros([1, 9, 10, 3], bool), "of bool: give numbers"),
        ([np.zeros([9, 10, 3]), np.zeros([8, 10, 3])], "give numbers"),
        (np.full([1, 9, 10, 3], 2.0), "values 2 to 2 of float64: give floats 0..1, or integers 0..255"),
        (np.full([1, 9, 10, 3], np.nan), "give floats 0..1"),
        (np.full([1, 9, 10, 3], -1), "values -1 to -1 of int64"),
        ([], "images is an empty list"),
        ("nowhere", "images=nowhere: no such file or folder"),
    ],
)
def test_images_that_are_none(images, said, loaded):
    with pytest.raises(DataError, match=said):
        loaded.predict(images)


def test_bad_files_are_named(loaded, trained, tmp_path, capsys):
    shutil.copy(next((trained / "photos/test").rglob("*.png")), tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes()[:-30])
    with pytest.raises(DataError, match=r"1 of 2 images can't be used: .*b\.png .*; replace or remove them"):
        loaded.predict(tmp_path)
    skipping = accumtrain.load_run("bugs", run_dir=trained / "runs")
    skipping.config = replace(skipping.config, data=replace(skipping.config.data, on_error="skip"))
    assert skipping.predict(tmp_path).files == [str(tmp_path / "a.png")]
    assert "they are left out" in capsys.readouterr().err


def test_other_data(loaded, trained, tmp_path):
    for label, name in enumerate(NAMES):
        (tmp_path / "new" / name).mkdir(parents=True)
        for number in range(95, 100):
            Image.fromarray(pixels(label, number)).save(tmp_path / "new" / name / f"{number}.png")
    labels = np.repeat(np.arange(3), 5)
    images = np.stack([pixels(label, number) for label in range(3) for number in range(95, 100)])
    np.savez(tmp_path / "new.npz", images=images, labels=labels)
    from_folder = loaded.evaluate(tmp_path / "new")
    from_arrays = loaded.evaluate(accumtrain.NpzConfig(path=str(tmp_path / "new.npz")))
    assert from_folder["own_data"] is from_arrays["own_data"] is False
    assert from_folder["test"] == pytest.approx(from_arrays["test"], rel=1e-5)
    assert [result["examples"] for result in from_folder["classes"]] == [5, 5, 5]
    with pytest.raises(DataError, match="nowhere"):
        loaded.evaluate(tmp_path / "nowhere")


def test_the_last_state(trained, loaded):
    last = accumtrain.load_run(trained / "runs/bugs", state="last")
    assert last.step == 12
    split = open_data(loaded.config.data, 0).test
    assert last.evaluate()["test"] == {name: last.summary["test"][name] for name in ("loss", "accuracy")}
    assert split.size == 15


def test_what_can_not_be_loaded(here, compose):
    with pytest.raises(ConfigError, match=r"load_run\('bug'\): no run of that name in runs.* did you mean bugs\?"):
        accumtrain.load_run("bug")
    with pytest.raises(ConfigError, match="train one first, or give the run_dir"):
        accumtrain.load_run("bugs", run_dir="elsewhere")
    with pytest.raises(ConfigError, match="state=first: must be one of best, last"):
        accumtrain.load_run("bugs", state="first")
    config = compose("run.dir=runs", "run.name=begun")
    with Run(config) as begun:
        begun.save_config(config)
    with pytest.raises(CheckpointError, match=r"no checkpoint in runs/begun/checkpoints: train first"):
        accumtrain.load_run("begun")
    file = here / "runs/begun/config.yaml"
    values = OmegaConf.load(file)
    values.model = {"kind": "compiled"}
    OmegaConf.save(values, file)
    with pytest.raises(ConfigError, match=r"is a run of accumtrain\.fit, whose model is in the program that called it"):
        accumtrain.load_run("begun")
    (here / "runs/bugs/config.yaml").write_text("model: [")
    with pytest.raises(CheckpointError, match=r"config\.yaml is damaged"):
        accumtrain.load_run("bugs")


def test_data_without_a_path(loaded):
    of_digits = replace(loaded.config, data=accumtrain.DigitsConfig())
    unnamed = accumtrain.LoadedRun.__new__(accumtrain.LoadedRun)
    unnamed.config = of_digits
    with pytest.raises(ConfigError, match="the run was trained on data=digits, which has no path"):
        unnamed.evaluate("photos")
