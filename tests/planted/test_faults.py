"""job=verify finds every planted fault by the checks that should, and nothing where there is none."""

import ast
import json
from pathlib import Path

import pytest

from accumtrain.dispatch import run
from accumtrain.errors import VerificationError
from accumtrain.measure import verify
from tests.models.published.folders import CLASSES, NEXT, write_folder
from tests.planted.faults import FAULTS
from tests.planted.found_by import FOUND_BY

FAST = {"labels + 1"}
VERIFY = ("job=verify", "batch_size=8", "accum.steps=2", "run.name=one")


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "bert", "bert", head=CLASSES, labels=2)
    write_folder(tmp_path / "gpt2", "gpt2", head=NEXT)
    rows = ({"text": "abc def"[: 2 + place % 5], "label": str(place % 2)} for place in range(40))
    (tmp_path / "texts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.mark.parametrize(
    "fault",
    [pytest.param(each, id=each.name, marks=() if each.name in FAST else pytest.mark.slow) for each in FAULTS],
)
def test_a_planted_fault_is_found(compose, monkeypatch, fault):
    config = compose(*VERIFY, *fault.overrides)
    fault.plant(monkeypatch)
    with pytest.raises(VerificationError) as caught:
        run(config)
    failed = [each["check"] for each in caught.value.result["checks"] if each["passed"] is False]
    dead = {part for part in FOUND_BY[fault.name] if not any(part in name for name in failed)}
    assert not dead, failed


@pytest.mark.slow
@pytest.mark.parametrize("overrides", sorted({fault.overrides for fault in FAULTS}), ids=" ".join)
def test_healthy_code_passes(compose, overrides):
    judged = [each["check"] for each in run(compose(*VERIFY, *overrides))["checks"] if each["passed"] is not None]
    parts = set().union(*FOUND_BY.values())
    assert not [name for name in judged if not any(part in name for part in parts)], "found by no fault"


def test_every_fault_has_its_place(monkeypatch):
    """A function that was renamed is no place any more. The tests that plant a fault take long."""
    for fault in FAULTS:
        with monkeypatch.context() as patch:
            fault.plant(patch)


def test_every_fault_is_found_by_something():
    assert FOUND_BY.keys() == {fault.name for fault in FAULTS}
    assert all(FOUND_BY.values())


def judged_names():
    """The longest fixed text in the name of each check that has a bound."""
    files = set(Path(verify.__path__[0]).glob("*.py")) - {Path(verify.__path__[0], "on_jax.py")}  # see tests/pjrt
    for file in sorted(files):
        for function in ast.walk(ast.parse(file.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            nodes = list(ast.walk(function))
            values = {ast.unparse(node.targets[0]): node.value for node in nodes if isinstance(node, ast.Assign)}
            for call in nodes:
                if not (isinstance(call, ast.Call) and getattr(call.func, "id", "") == "CheckResult"):
                    continue
                name, _, bound, *_ = call.args
                if not (isinstance(bound, ast.Constant) and bound.value is None):
                    name = values[name.id] if isinstance(name, ast.Name) else name
                    texts = [node.value for node in ast.walk(name) if isinstance(node, ast.Constant)]
                    yield max(texts, key=len)


def test_every_check_with_a_bound_finds_a_fault():
    names = set(judged_names())
    assert names
    parts = set().union(*FOUND_BY.values())
    assert not [name for name in names if not any(name in part or part in name for part in parts)]
