"""Every file of a run, damaged in every way: the same command goes on to the same bits, or names the file and stops."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import yaml

from accumtrain.measure import auto_steps
from accumtrain.measure.probe import ProbeResult

FILES = [
    *(".lock", "config.yaml", "metrics.jsonl", "summary.json", "inputs.json", "results.png"),
    *("checkpoints/step-2/manifest.json", "checkpoints/step-4/manifest.json", "checkpoints/best/*/manifest.json"),
    *("checkpoints/step-4/state.index", "checkpoints/step-4/state.data-00000-of-00001"),
]
SMALL = (
    *("model=lenet5", "data=digits", "batch_size=64", "accum.steps=2", "optim=sgd", "schedule=constant"),
    *("eval.every=2", "checkpoint.every=2", "log.every=1", "run.name=one"),
)


def removed(file: Path) -> Path:
    file.unlink()
    return file


def change_leaves(file: Path, change: Callable[[Any], Any]) -> None:
    """Writes each value that holds no others anew, in the JSON, lines of JSON or YAML that a file holds."""

    def changed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: changed(item) for key, item in value.items()}
        return [changed(item) for item in value] if isinstance(value, list) else change(value)

    text = file.read_text()
    if file.suffix == ".yaml":
        file.write_text(yaml.safe_dump(changed(yaml.safe_load(text))))
    else:
        lines = text.splitlines() if file.suffix == ".jsonl" else [text]
        file.write_text("\n".join(json.dumps(changed(json.loads(line))) for line in lines) + "\n")


# ten lists of ten each: 10 billion values, if somebody writes them out
LISTS = [f"l{number}: &l{number} [{', '.join([f'*l{number - 1}'] * 10)}]" for number in range(1, 10)]
ALIASES = "\n".join(["l0: &l0 [x, x, x, x, x, x, x, x, x, x]", *LISTS, ""])
DAMAGES: dict[str, Callable[[Path], Any]] = {
    "cut": lambda file: os.truncate(file, file.stat().st_size // 2),
    "empty": lambda file: os.truncate(file, 0),
    "garble": lambda file: file.write_bytes(random.Random(0).randbytes(file.stat().st_size)),
    "other_json": lambda file: file.write_text("[1e999, null]\n"),
    "delete": removed,
    "directory": lambda file: removed(file).mkdir(),
    "dangle": lambda file: removed(file).symlink_to("nowhere"),
    "fifo": lambda file: os.mkfifo(removed(file)),
}
CONTENTS: dict[str, Callable[[Path], Any]] = {
    "without_values": lambda file: change_leaves(file, lambda value: None),
    "texts_for_numbers": lambda file: change_leaves(file, lambda v: str(v) if isinstance(v, int | float) else v),
    "numbers_for_texts": lambda file: change_leaves(file, lambda value: 10**400 if isinstance(value, str) else value),
    "lists_for_all": lambda file: change_leaves(file, lambda value: [value]),
    "brackets": lambda file: file.write_text("[" * 100_000),
    "aliases": lambda file: file.write_text(ALIASES),
    "alias_of_itself": lambda file: file.write_text("model: &model {kind: *model}\n"),
}
ALL = {
    **DAMAGES,
    **CONTENTS,
    "without_steps": lambda file: file.write_text(file.read_text().replace("steps: 2", "steps: [2]")),
}
TEXTS = (".lock", "config.yaml", "metrics.jsonl", "summary.json", "inputs.json", "checkpoints/step-4/manifest.json")
EVALUATED = ("job=evaluate", "run.name=one")
CASES = [*product(FILES, DAMAGES), *product(TEXTS, CONTENTS)]
IN_SHORT = {  # what must not take its time
    (".lock", "dangle"),
    ("checkpoints/step-4/manifest.json", "fifo"),
    ("summary.json", "directory"),
    ("summary.json", "texts_for_numbers"),
    ("config.yaml", "aliases"),
    ("checkpoints/step-4/state.index", "cut"),
}


def damage(run: Path, file: str, how: str) -> None:
    ALL[how](next(run.glob(file)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, compose: Callable) -> tuple[Path, dict[str, np.ndarray]]:
    """A run stopped after update 4, and the tensors of the same run after update 6."""
    from accumtrain.dispatch import run

    folder = tmp_path_factory.mktemp("runs")
    run(compose(*SMALL, "train.steps=4", f"run.dir={folder}"))
    shutil.copytree(folder / "one", folder / "whole")
    run(compose(*SMALL, "train.steps=6", f"run.dir={folder}", "run.name=whole"))
    return folder / "one", tensors(folder / "whole")


def assert_same_run(run: Path, expected: dict[str, np.ndarray]) -> None:
    found = tensors(run)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected), "the same run to the bit"


def tensors(run: Path) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(run / "checkpoints/step-6/state"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if "OBJECT_GRAPH" not in name}


@pytest.mark.parametrize(
    ("file", "how"),
    [pytest.param(*case, marks=[] if case in IN_SHORT else pytest.mark.slow) for case in CASES],
)
def test_a_damaged_run_continues_or_stops(trained, command, tmp_path, file, how):
    before, expected = trained
    run = tmp_path / "runs/one"
    shutil.copytree(before, run)
    damage(run, file, how)
    precious = tmp_path / "nowhere"
    precious.write_text("not of this run")
    for arguments in (("job=report",), ("job=info", "run.name=one"), EVALUATED, (*SMALL, "train.steps=6")):
        answer = command(*arguments)
        told = answer.out + answer.err
        assert answer.code in (0, 2, 3, 5), (arguments, answer)
        assert "Traceback" not in told, (arguments, answer)
        assert "this is a bug" not in told, (arguments, answer)
    if answer.code == 0:
        assert_same_run(run, expected)
    else:
        assert Path(file).parts[0] in answer.err, "the message names what is damaged"
    assert precious.read_text() == "not of this run"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nowhere", "runs"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cut", "empty", "garble", "other_json", "without_steps"])
def test_micro_batches_of_a_damaged_run_are_looked_for_again(trained, command, monkeypatch, tmp_path, how):
    before, expected = trained
    run = tmp_path / "runs/one"
    shutil.copytree(before, run)
    damage(run, "config.yaml", how)
    found = ProbeResult("store", 32, fits=True, accum_steps=2)
    monkeypatch.setattr(auto_steps, "search", lambda *_: [found])
    answer = command(*SMALL, "accum.steps=auto", "train.steps=6")
    assert answer.code == 0, answer
    assert "config.yaml is damaged" in answer.err
    assert "accum.steps is searched for again" in answer.err
    assert_same_run(run, expected)


@pytest.mark.slow
def test_a_damaged_run_under_a_memory_limit_continues(trained, command, monkeypatch, tmp_path):
    before, _ = trained
    shutil.copytree(before, tmp_path / "runs/one")
    damage(tmp_path / "runs/one", "config.yaml", "empty")
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
    answer = command(*SMALL, "device.memory_limit_mb=4000", "train.steps=4")
    assert answer.code == 0, answer
