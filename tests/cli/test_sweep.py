"""Sweeps in this process: their table, how they go on after failures, and how they end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accumtrain.cli.compose import call_hydra
from accumtrain.cli.sweep import job as sweep
from accumtrain.errors import ConfigError, DataError, DivergedError, Preempted
from tests.begun import leave_checkpoint


def summary(accuracy: float | None, loss: float = 0.5) -> dict[str, Any]:
    return {
        "status": "completed",
        "step": 7,
        "epoch": 1.5,
        "test": {"accuracy": accuracy, "loss": loss},
        "best": {"accuracy": accuracy, "loss": loss},
        "examples_per_second": 1234.5,
        "seconds": 61.0,
    }


def rows_of(out: str) -> list[list[str]]:
    """The rows of the table that closes a sweep."""
    lines = out[out.index("best first") :].splitlines()[2:]
    return [line.split() for line in lines if not line.endswith(" for a browser")]


def test_sweep_ranks_its_runs(command, fake_job, tmp_path):
    accuracies = {32: 0.8, 64: 0.95, 128: 0.8}
    seen = fake_job(lambda config: summary(accuracies[config.batch_size], config.batch_size))
    answer = command("-m", "batch_size=32,128,64", "train.epochs=2")
    assert answer.code == 0
    names = [f"revnet38-digits-batch_size{size}-epochs2" for size in (32, 128, 64)]
    assert [config.run.name for config in seen] == names
    assert rows_of(answer.out) == [
        ["64", "completed", "7", "1.5", *(["0.9500", "64.0000"] * 2), "1,234", "1:01"],
        ["32", "completed", "7", "1.5", *(["0.8000", "32.0000"] * 2), "1,234", "1:01"],
        ["128", "completed", "7", "1.5", *(["0.8000", "128.0000"] * 2), "1,234", "1:01"],
    ]
    rows = json.loads((tmp_path / "runs" / "sweep.json").read_text())
    assert [row["summary"]["test"]["accuracy"] for row in rows] == [0.95, 0.8, 0.8]
    assert rows[0]["path"] == "runs/revnet38-digits-batch_size64-epochs2"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["runs"], "nothing of Hydra's"
    assert "batch_size64" in (tmp_path / "runs" / "report.html").read_text()


def test_a_name_that_cannot_hold_all_has_what_was_swept_first(command, fake_job):
    seen = fake_job(lambda config: summary(0.5))
    fixed = ["model=lenet5", "batch_size=128", "data.augment=shift", "data.val_fraction=0.25"]
    assert command("-m", *fixed, "optim.lr=0.02,0.05").code == 0
    assert [config.run.name.rpartition("-")[0] for config in seen] == [
        f"lenet5-digits-lr{rate}-batch_size128-augment_shift" for rate in (0.02, 0.05)
    ]
    assert command(*fixed, "optim.lr=0.02").code == 0
    assert seen[2].run.name.startswith("lenet5-digits-batch_size128-augment_shift-")


def test_sweep_of_benchmarks_ranks_them_by_speed(command, fake_job):
    def measure(config):
        return {
            "examples_per_second": {"median": 10.0 * config.batch_size},
            "memory": {"tensor_peak_bytes": 3 * 2**20, "rss_peak_bytes": 2**30},
            "share_of_matmul": None,
            "seconds_to_first_update": {"total": 14.2},
        }

    fake_job(measure, "bench")
    answer = command("-m", "job=bench", "batch_size=32,64")
    assert answer.code == 0
    assert rows_of(answer.out) == [
        ["64", "completed", "640", "3.0", "MB", "1.0", "GB", "-", "14.2", "s"],
        ["32", "completed", "320", "3.0", "MB", "1.0", "GB", "-", "14.2", "s"],
    ]


def test_sweep_goes_on_after_failures(command, fake_job):
    def job(config):
        if config.run.seed == 0:
            raise DataError("no data")
        if config.run.seed == 1:
            raise ZeroDivisionError
        if config.run.seed == 2:
            raise DivergedError("the loss is no number", summary(accuracy=None))
        return summary(accuracy=0.9)

    seen = fake_job(job)
    answer = command("-m", "run.seed=0,1,2,3")
    assert len(seen) == 4
    assert answer.code == DataError.exit_code, "that of the first failure"
    ends = [" ".join(row[:2]) for row in rows_of(answer.out)]
    assert ends == ["3 completed", "2 DivergedError", "0 DataError", "1 bug"]


def test_a_sweep_that_fails_fast_starts_nothing_after_the_first_failure(command, fake_job, tmp_path):
    seen = fake_job(failing_at_64(DivergedError("no number")))
    answer = command("-m", "batch_size=32,64,128,256", "sweep.fail_fast=true")
    assert [config.batch_size for config in seen] == [32, 64]
    assert answer.code == DivergedError.exit_code, "as without it"
    rows = rows_of(answer.out)
    assert [" ".join(row[:3]) for row in rows] == [
        "32 completed 7",
        "64 DivergedError -",
        "128 not started",
        "256 not started",
    ]
    assert "warning: 2 of 4 runs were not started, because one had failed (sweep.fail_fast=true)\n" in answer.err
    written = json.loads((tmp_path / "runs" / "sweep.json").read_text())
    assert [(row["status"], row["exit_code"]) for row in written[1:]] == [
        ("DivergedError", 4),
        *[("not started", None)] * 2,
    ]
    assert [config.run.name for config in seen] == [f"revnet38-digits-batch_size{size}" for size in (32, 64)], (
        "no part of a run's name"
    )


def test_a_refused_run_ends_a_sweep_that_fails_fast(command, fake_job):
    seen = fake_job(lambda config: summary(accuracy=0.9))
    answer = command("-m", "batch_size=32,33,64", "accum.steps=4", "sweep.fail_fast=true")
    assert [config.batch_size for config in seen] == [32]
    assert "; no run starts after that one (sweep.fail_fast=true)\n" in answer.err
    assert answer.code == ConfigError.exit_code


def test_a_stop_is_no_failure(command, fake_job):
    fake_job(failing_at_64(Preempted("saved")))
    answer = command("-m", "batch_size=32,64,128", "sweep.fail_fast=true")
    assert answer.code == Preempted.exit_code
    assert len(rows_of(answer.out)) == 2


@pytest.mark.parametrize(("stop", "code"), [(Preempted("saved"), 75), (KeyboardInterrupt(), 130)])
def test_sweep_ends_when_stopped(stop, code, command, fake_job):
    seen = fake_job(failing_at_64(stop))
    answer = command("-m", "batch_size=32,64,128")
    assert answer.code == code
    assert len(seen) == len(rows_of(answer.out)) == 2


@pytest.mark.parametrize("begun", [0, 1])
def test_sweep_that_is_stopped_between_its_jobs(begun, command, fake_job, monkeypatch):
    def call_until_a_signal(options, task, **more):
        def until_a_signal(composed):
            if len(seen) == begun:
                raise KeyboardInterrupt
            return task(composed)

        call_hydra(options, until_a_signal, **more)

    monkeypatch.setattr(sweep, "call_hydra", call_until_a_signal)
    seen = fake_job(lambda config: summary(accuracy=0.9))
    answer = command("-m", "batch_size=32,64")
    assert answer.code == 75, "not 0, which means that all is done"
    assert "the sweep was stopped; the same command continues it" in answer.out
    assert answer.out.count("completed") == begun


def test_sweep_over_jobs_may_share_a_run(command, fake_job, monkeypatch):
    def train(config):
        leave_checkpoint(config)
        return summary(accuracy=0.9)

    seen = fake_job(train)
    also = fake_job(train, "evaluate")
    assert command("-m", "job=train,evaluate", "run.name=one").code == 0
    assert [config.job for config in (*seen, *also)] == ["train", "evaluate"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("run.name=x batch_size=32,64", "run.name=x: 2 jobs of the sweep would write runs/x/summary.json; leave"),
        (
            "log.every=1,2,3",
            "3 jobs of the sweep would write runs/revnet38-digits/summary.json; leave run.name out, or",
        ),
        (
            "job=export run.name=x export.format=keras,tflite",
            "job=export: 2 jobs of the sweep would write runs/x/export.json; give their commands one by one\n",
        ),
        ("job=report report.runs=[a],[b]", "job=report: 2 jobs of the sweep would write runs/report.json; give"),
    ],
)
def test_jobs_that_would_write_the_same_file(refused, arguments, told):
    assert told in refused("-m", *arguments.split())


def failing_at_64(error):

    def job(config):
        if config.batch_size == 64:
            raise error
        return summary(accuracy=0.9)

    return job


def test_refused_run_in_a_sweep_has_no_numbers(command, fake_job):
    fake_job(failing_at_64(ConfigError("not this one")))
    assert rows_of(command("-m", "batch_size=32,64").out)[1] == ["64", "ConfigError", *("-" * 8)]


def test_a_sweeper_gets_the_test_accuracy_of_each_job(command, fake_job, monkeypatch):
    returned = []

    def call_and_note(options, task, **more):
        call_hydra(options, lambda composed: returned.append(task(composed)), **more)

    monkeypatch.setattr(sweep, "call_hydra", call_and_note)
    fake_job(failing_at_64(DataError("no data")))
    command("-m", "batch_size=32,64")
    assert returned == [0.9, 0.0]


def test_a_corner_of_a_grid_that_is_refused_keeps_the_others_from_nothing(command, fake_job):
    seen = fake_job(lambda config: summary(accuracy=0.9))
    answer = command("-m", "batch_size=32,36", "accum.steps=4,8")
    assert answer.code == ConfigError.exit_code
    assert [(config.batch_size, config.accum.steps) for config in seen] == [(32, 4), (32, 8), (36, 4)]
    assert answer.err.startswith("warning: run 4 of the sweep will be refused: batch_size=36 is not divisible by")
    assert [row[2] for row in rows_of(answer.out)] == ["completed", "completed", "completed", "ConfigError"]
