"""benchmarks/results.py and what_fits.py make what is missing, and docs/results.md shows every row and every recipe."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from accumtrain.runs.files import write_json
from accumtrain.runs.folder import result_file
from tests.conftest import composed

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results.md"


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark, which imports its neighbours."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("results")


@pytest.fixture
def what_fits(results: ModuleType) -> ModuleType:
    """The benchmark whose table the page has, too."""
    return importlib.import_module("what_fits")


@pytest.fixture
def made(results: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs that are made, each of which is complete at once."""
    names: list[str] = []

    def run_command(command: list[str]) -> None:
        folder, name = (word.partition("=")[2] for word in command[-2:])
        names.append(name)
        Path(folder, name).mkdir(parents=True)
        write_json(Path(folder, name, "summary.json"), summary(command, accuracy=0.9 + 0.01 * len(names)))

    monkeypatch.setattr(results, "run_command", run_command)
    return names


def summary(command: list[str], *, accuracy: float, status: str = "completed") -> dict[str, Any]:
    """The parts of a summary.json that are read."""
    return {
        **{"status": status, "step": 1, "epoch": 1.0, "skipped_windows": 0, "skipped_examples": 0, "best_on": "test"},
        **{name: {"loss": 0.5, "accuracy": accuracy} for name in ("train", "val", "test", "best")},
        **{"best_by": None, "seconds": 90.0, "examples_per_second": 1.0, "memory": {}},
        "memory_by_kind": {"weights": 2**20, "activations": 2**21},
        "provenance": {
            **{"versions": {"tensorflow": "2.21.0"}, "git": None, "command": command, "cpu": {"model": "a CPU"}},
            **{"started": "2026-11-27T23:12:52+00:00", "host": "one", "platform": "Linux", "device": "CPU, 2 cores"},
        },
    }


def test_the_page_shows_every_row_and_every_recipe(results):
    page = PAGE.read_text()
    assert all(f"\naccumtrain {overrides} {results.DATA} train.epochs=" in page for overrides in results.ROWS.values())
    assert all(f"\n| {row} | " in page for row in results.ROWS)
    assert "\n".join(results.tabulate_recipes()) in page


def test_the_commands_of_the_rows_compose(results):
    plan = results.Plan(Path("runs"), 1, [0])
    for row in results.ROWS:
        assert composed(*plan.command(row, 0)[1:]).batch_size == 128, row


def test_what_is_complete_is_not_made_again(results, made, tmp_path, capsys):
    plan, rows = results.Plan(tmp_path, 1, [0, 1]), list(results.ROWS)[:2]
    results.run_missing(plan, rows[:1], None)
    results.run_missing(plan, rows, tmp_path / "page.md")
    assert made == [plan.name(rows[0], 0), plan.name(rows[0], 1), plan.name(rows[1], 0), plan.name(rows[1], 1)]
    assert f"| {rows[0]} | 0.9150 | 0.0100 | 2 | 3.0 | 1:30 |" in capsys.readouterr().out
    page = (tmp_path / "page.md").read_text()
    assert f"| {rows[1]} | 0.9350 | 0.0100 | 2 | 3.0 | 1:30 |" in page
    assert "for 1 epoch, " in page
    assert "Run from 2026-11-27 to 2026-11-27 on a CPU, CPU, 2 cores, TensorFlow 2.21.0." in page


def test_stored_and_reversed_are_compared(results, made, tmp_path):
    plan = results.Plan(tmp_path, 1, [0])
    results.run_missing(plan, results.EQUAL, tmp_path / "page.md")
    assert "same to the last digit for 0 of 1 seeds." in (tmp_path / "page.md").read_text()


def test_a_stopped_run_goes_on_and_another_one_is_refused(results, made, tmp_path):
    plan, row = results.Plan(tmp_path, 1, [0]), next(iter(results.ROWS))
    folder = tmp_path / plan.name(row, 0)
    folder.mkdir()
    write_json(folder / "summary.json", summary(plan.command(row, 0), accuracy=0.9, status="stopped"))
    assert plan.read(row) == {}
    write_json(
        folder / "summary.json", summary(["accumtrain", "model=lenet5", "run.dir=a", "run.name=b"], accuracy=0.9)
    )
    with pytest.raises(SystemExit, match="is of another command than lenet5-4x32 is: remove it, or give other --runs"):
        results.run_missing(plan, [row], None)


def test_the_page_shows_every_case_of_what_fits(what_fits):
    page = PAGE.read_text()
    assert f"| {' | '.join(what_fits.HEAD)} |" in page
    for case, (model, optim) in what_fits.CASES.items():
        assert f"| {model.partition('=')[2]} | {optim.partition('=')[2]} | " in page, case


def test_the_plans_of_what_fits_compose_and_are_found(what_fits):
    for case in what_fits.CASES:
        config = composed(*what_fits.command_of(case)[1:], "run.dir=plans", f"run.name={case}")
        assert config.device.memory_limit_mb == 2048, case
        assert result_file(config) == what_fits.plan_file(case, Path("plans"))


def test_what_fits_lies_on_a_line_through_the_largest_that_ran(what_fits, tmp_path):
    """100 MB and 10 MB an image; what failed and what lay on a line already is not read."""
    case = next(iter(what_fits.CASES))
    trials = [plan_trial("store", 2, 500), plan_trial("store", 4, 140), plan_trial("store", 8, 180)]
    trials += [plan_trial("store", 16, None, fits=False), plan_trial("store", 32, 999, measured=False)]
    trials += [plan_trial("reverse", 16, 2000), plan_trial("reverse", 32, 3600)]
    file = what_fits.plan_file(case, tmp_path)
    file.parent.mkdir(parents=True)
    write_json(file, {"trials": trials})
    *_, store, reverse = what_fits.tabulate_cases([case], tmp_path, printed=False)
    assert store == "| revnet104 | adam | store | 184 | 379 | 768 | 1546 | 8: 180 MB |"
    assert reverse == "| revnet104 | adam | reverse | none | 34 | 73 | 151 | 32: 3,600 MB |"
    what_fits.make_missing([case], tmp_path)  # its plan is there


def plan_trial(
    memory: str, micro_batch: int, mb: int | None, *, fits: bool = True, measured: bool = True
) -> dict[str, Any]:
    """The parts of a trial of plan.json that are read."""
    peak = None if mb is None else mb * 2**20
    return {"memory": memory, "micro_batch": micro_batch, "fits": fits, "measured": measured, "peak_bytes": peak}


def test_a_plan_that_fails_ends_the_rest_and_a_line_needs_two(what_fits, tmp_path, monkeypatch):
    case = next(iter(what_fits.CASES))
    monkeypatch.setitem(what_fits.CASES, case, ("model=nothing", "optim=adam"))
    monkeypatch.setattr(what_fits.sys, "executable", "false")
    with pytest.raises(SystemExit) as ended:
        what_fits.make_missing([case], tmp_path)
    assert ended.value.code == 1
    file = what_fits.plan_file(case, tmp_path)
    file.parent.mkdir(parents=True)
    write_json(file, {"trials": [plan_trial("store", 2, 500)]})
    with pytest.raises(SystemExit, match="a line needs two micro-batches that fit into 2048 MB"):
        what_fits.tabulate_cases([case], tmp_path, printed=False)
