"""examples/table_of_numbers.py: inputs from outside have the jobs of the command line."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from tests.programs import run_python

PROGRAM = Path(__file__).parents[2] / "examples" / "table_of_numbers.py"
TRAINING = ("task=regress", "data=rows", "data.path=rows.csv", "model=mlp", "optim=adam", "optim.lr=0.01")
TRUE = np.array([2.0, -1.0, 0.5])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table, new rows without the number, and a run of 20 epochs."""
    folder, random = tmp_path_factory.mktemp("rows"), np.random.default_rng(0)
    inputs = random.normal([0, 50, -3], [1, 20, 0.1], [600, 3])
    prices = 100 + ((inputs - [0, 50, -3]) / [1, 20, 0.1]) @ TRUE
    write(folder / "rows.csv", ["a", "b", "c", "price"], np.c_[inputs, prices])
    write(folder / "new.csv", ["a", "b", "c"], inputs[:7])
    call(
        folder, *TRAINING, "batch_size=32", "accum.steps=4", "train.epochs=20", "run.name=one", "data.val_fraction=0.1"
    )
    return folder, prices


def write(file, names, rows):
    np.savetxt(file, rows, delimiter=",", header=",".join(names), comments="", fmt="%.9g")


def call(folder, *arguments, code=0):
    done = run_python(PROGRAM, *arguments, cwd=folder)
    assert done.returncode == code, done.stderr[-2000:]
    return done.stdout + done.stderr


@pytest.mark.slow
def test_it_learns_and_every_number_is_in_the_unit_of_the_table(folder):
    path, prices = folder
    summary = json.loads((path / "runs" / "one" / "summary.json").read_text())
    assert summary["best_by"] == {"metric": "loss", "higher_is_better": False}
    assert summary["test"]["r2"] > 0.95
    assert summary["test"]["mae"] < 0.3 * prices.std()
    call(path, "job=evaluate", "run.name=one")
    found = json.loads((path / "runs" / "one" / "evaluation.json").read_text())
    assert [number["name"] for number in found["numbers"]] == ["price"]
    assert found["numbers"][0]["mae"] == pytest.approx(summary["test"]["mae"], rel=1e-6)
    assert (path / "runs" / "one" / "numbers.png").is_file()


@pytest.mark.slow
def test_it_predicts_rows_and_an_export_takes_them_as_they_are(folder):
    path, prices = folder
    assert "\ninput  " in call(path, "job=predict", "run.name=one", "predict.input=new.csv")
    with (path / "runs" / "one" / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == [f"row {number}" for number in range(1, 8)]
    np.testing.assert_allclose([float(row["price"]) for row in rows], prices[:7], atol=1.5)
    assert "float32 [N, 3]" in call(path, "job=export", "run.name=one", "export.format=tflite")


@pytest.mark.slow
def test_a_loaded_run_predicts_the_rows_of_a_file_or_of_an_array(folder, tmp_path):
    path, _ = folder
    program = tmp_path / "predict.py"
    program.write_text(
        f"import sys; sys.path.insert(0, {str(PROGRAM.parent)!r})\n"
        "import table_of_numbers, accumtrain, numpy\n"
        "run = accumtrain.load_run('one')\n"
        "found, rows = run.predict('new.csv'), numpy.loadtxt('new.csv', delimiter=',', skiprows=1)\n"
        "print(found.files == [f'row {number}' for number in range(1, 8)], "
        "found.records == run.predict(rows).records)\n"
    )
    done = run_python(program, cwd=path)
    assert done.stdout.splitlines()[-1:] == ["True True"], done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("job", ["verify", "plan", "lr"])
def test_it_has_the_jobs_that_measure(folder, job):
    path, _ = folder
    call(path, f"job={job}", "run.name=one", "accum.steps=4")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("task=regress",), "task=regress: data=digits has no numbers for it; choose "),
        ((*TRAINING[:3], "model=lenet5"), "model=lenet5: takes pixels, and an example of the data is rows [3]"),
        ((*TRAINING, "loss=cross_entropy"), "loss=cross_entropy: takes classes, and the targets of task="),
    ],
)
def test_what_does_not_go_with_it_is_refused(tmp_path, arguments, message):
    write(tmp_path / "rows.csv", ["a", "b", "c", "price"], np.random.default_rng(0).normal(size=[20, 4]))
    assert message in call(tmp_path, *arguments, code=2)


@pytest.mark.slow
def test_columns_of_a_table_have_the_jobs_without_inputs_of_ones_own(folder):
    path, prices = folder
    table = ("data=table", "data.path=rows.csv", "data.number_columns=[a,b,c]", "data.label_column=price")
    own = (*TRAINING[:1], *table, *TRAINING[3:], "batch_size=32", "train.epochs=20", "run.name=table")
    call(path, *own)
    call(path, "job=predict", "run.name=table", "predict.input=new.csv")
    with (path / "runs" / "table" / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == [f"new.csv, row {number}" for number in range(2, 9)]
    np.testing.assert_allclose([float(row["price"]) for row in rows], prices[:7], atol=1.5)
    call(path, "job=export", "run.name=table")
    rows = np.loadtxt(path / "rows.csv", delimiter=",", skiprows=1)[:100, ::-1]
    write(path / "other.csv", ["price", "c", "b", "a"], rows)
    call(path, "job=evaluate", "run.name=table", "data.path=other.csv")
    found = json.loads((path / "runs" / "table" / "evaluation-other.csv.json").read_text())
    assert (found["numbers"][0]["examples"], found["test"]["r2"] > 0.95) == (100, True)
