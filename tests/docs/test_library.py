"""The programs of docs/library.md, keras.md, keras_details.md, coming_from.md and index.md run as they stand there."""

import json
import re
from functools import partial
from pathlib import Path

import keras
import numpy as np
import pytest

from accumtrain.keras import Accumulate, Adafactor, accumulate
from tests.programs import output_of

ROOT = Path(__file__).parents[2]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"


def programs(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)


JOB, LIBRARY, MINE, *RECIPES = programs("library.md")
OF_KERAS = dict(
    zip(
        [
            "accumulate",
            "Accumulate",
            "fit",
            "best state",
            "reversible",
            "large vocabulary",
            "whole batch",
            "stream",
            "transformer",
            "quick start",
        ],
        [*programs("keras.md"), *programs("keras_details.md"), *programs("index.md")],
        strict=True,
    )
)
SLOW = {"whole batch", "Accumulate", "quick start", "fit", "stream", "best state", "reversible", "transformer"}


@pytest.fixture
def python(tmp_path):
    """Runs a program in an empty folder; returns what it printed."""

    def run(text, *arguments):
        (tmp_path / "mine.py").write_text(text)
        return output_of("mine.py", *arguments, cwd=tmp_path)

    return run


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in OF_KERAS]
)
def test_a_program_with_keras_runs(python, name):
    python(OF_KERAS[name])


@pytest.mark.slow
def test_own_layers_train(python):
    assert len(LIBRARY.splitlines()) <= 30
    loss, accuracy = re.fullmatch(r"after 100 updates: loss (\S+), accuracy (\S+)\n", python(LIBRARY)).groups()
    assert float(loss) < 0.5
    assert float(accuracy) > 0.8


@pytest.mark.slow
def test_a_job_of_a_configuration(python, tmp_path):
    assert python(JOB).splitlines()[-1].startswith("completed {'loss': ")
    summary = json.loads((tmp_path / "runs" / "from-python" / "summary.json").read_text())
    assert (summary["accum_steps"], summary["step"]) == (8, 20)


@pytest.mark.slow
def test_own_program_has_the_command_line(python, tmp_path):
    assert " mynet," in python(MINE, "--help")
    run = ("model=mynet", "optim=adam", "accum.steps=8", "run.name=one")
    python(MINE, *run, "train.steps=3")
    assert "continuing after update 3 of 5" in python(MINE, *run, "train.steps=5")
    verified = python(MINE, "model=mynet", "job=verify")
    assert "all bounds hold" in verified
    assert "checks in float64: left out, as the model does not compute in it: " in verified


@pytest.mark.slow
def test_own_program_in_child_processes(python, tmp_path):
    """Probes, jobs of a sweep and workers are the same program once more."""
    assert "recompute" in python(MINE, "model=mynet", "job=plan", "batch_size=2", "accum.steps=1")
    sweep = ("-m", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "model=mynet", "batch_size=32,64")
    assert "2 runs, best first" in python(MINE, *sweep, "train.steps=3")
    assert "2 workers" in python(MINE, "--workers", "2", "model=mynet", "train.steps=3")


@pytest.fixture
def everything(python, tmp_path):
    """Run a program with all recipes of the page, and the file that its source reads."""
    rows = np.random.default_rng(0).integers(0, 3, [200, 65])
    np.savetxt(tmp_path / "digits.csv", rows, fmt="%d", delimiter=",")
    return partial(python, MINE.replace("accumtrain.main()\n", "".join([*RECIPES, "accumtrain.main()\n"])))


@pytest.mark.slow
def test_every_recipe_trains(everything, tmp_path):
    chosen = ("model=mynet", "optim=lion", "schedule=line", "data=csv", "loss=focal", "eval.metrics=[error,top5]")
    everything(*chosen, "log.tracker=lines", "run.name=one", "batch_size=16", "accum.steps=2", "train.steps=30")
    folder = tmp_path / "runs" / "one"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["best_by"] == {"metric": "error", "higher_is_better": False}
    assert summary["train"].keys() == {"loss", "error", "top5"}
    config = (folder / "config.yaml").read_text()
    assert all(f"kind: {kind}" in config for kind in ("mynet", "lion", "linear", "csv", "focal"))
    lines = (folder / "lines.txt").read_text().splitlines()
    assert (lines[0], lines[-1]) == ("one: optim.lr=0.0001", "completed")
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    hooked = [record for record in records if record["split"] == "hook"]
    assert [record["step"] for record in hooked] == [10, 20, 30]
    assert all(record["weight_norm"] > 0 for record in hooked)
    assert len(lines) == 2 + len(records)


@pytest.mark.slow
def test_a_job_of_ones_own(everything, tmp_path):
    everything("job=weights", "run.name=two", "batch_size=32")
    assert json.loads((tmp_path / "runs/trials/weights-two/weights.json").read_text())["batch_size"] == 32


def test_what_the_recipes_inside_name_is_there():
    named = re.findall(r"`((?:accumtrain|tests|conf|docs)/[\w./]*)`", CONTRIBUTING.read_text())
    assert [path for path in named if not (CONTRIBUTING.parent / path).exists()] == []
    assert {"accumtrain/models/config.py", "tests/contract/"} <= set(named)


def test_the_lines_for_other_tools_run():
    """Each program of docs/coming_from.md trains a model that is there."""
    draw = np.random.default_rng(0)
    for program in programs("coming_from.md"):
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        names = {"keras": keras, "accumulate": accumulate, "Accumulate": Accumulate, "Adafactor": Adafactor}
        x, y = draw.normal(size=(128, 6)), draw.integers(0, 4, 128)
        exec(program, {**names, "model": model, "loss": loss, "x": x, "y": y})
        assert model.optimizer is not None
