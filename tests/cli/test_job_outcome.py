"""The outcomes of the jobs of a sweep: their ends, and the values that rank them."""

import json
import math
import os
from dataclasses import replace

import pytest

from accumtrain.cli.sweep.table import JobOutcome, begin_outcome, report_sweep
from accumtrain.report.compare import describe_loss
from accumtrain.runs.files import write_json

TEST = {name: {"accuracy": 0.75, "loss": 1.5} for name in ("test", "best")}


@pytest.fixture
def outcome(tmp_path):
    """Return the outcome of a job, with the file of its result if it has written one."""

    def make(ended_with, job="train", result=None):
        file = tmp_path / f"{job}.json"
        if result is not None:
            write_json(file, result)
        return JobOutcome(["batch_size=32"], job, str(file), None, ended_with)

    return make


REFUSED = JobOutcome(["batch_size=33"], ended_with=2)


@pytest.mark.parametrize(
    ("ended_with", "status", "exit_code"),
    [
        (0, "completed", 0),
        (1, "bug", 1),
        (4, "DivergedError", 4),
        (130, "interrupted", 130),
        (137, "SIGKILL", 137),
        (128 + 40, "exit code 168", 168),  # a real-time signal, which has no name
        (255, "exit code 255", 255),
        (None, "lost", 75),
    ],
)
def test_status(outcome, ended_with, status, exit_code):
    assert (outcome(ended_with).status, outcome(ended_with).exit_code) == (status, exit_code)


def test_objective(outcome):
    assert outcome(0).objective == 0.0, "it has written nothing"
    assert outcome(0, result=TEST).objective == 0.75
    assert outcome(0, "bench", {"examples_per_second": {"median": 640.0}}).objective == 640.0
    assert outcome(4, result=TEST).objective == 0.0, "it failed"
    assert outcome(0, "verify", {"status": "passed"}).objective == 0.0, "nothing to compare by"
    assert REFUSED.objective == 0.0


def test_a_job_that_was_left_out():
    left = JobOutcome(["batch_size=33"], started=False)
    assert (left.status, left.exit_code, left.has_failed, left.objective) == ("not started", None, False, -math.inf)
    assert left.rank > REFUSED.rank


def test_the_best_comes_first_and_a_refused_one_last(outcome):
    better, worse = outcome(0, "train", TEST), outcome(0, "evaluate", {"test": {"accuracy": 0.75, "loss": 2.0}})
    untested, diverged, failed = outcome(0, "verify"), replace(better, ended_with=4), outcome(3, "bench")
    expected = [better, worse, untested, diverged, REFUSED, failed]
    assert sorted([REFUSED, failed, diverged, untested, worse, better], key=lambda each: each.rank) == expected


def test_jobs_are_ranked_within_their_data(outcome, tmp_path, capsys):
    def job(data, accuracy):
        done = outcome(0, f"train-{data}-{accuracy}", {"best": {"accuracy": accuracy, "loss": 1.0}})
        return replace(done, job="train", overrides=[f"data={data}", f"optim.lr={accuracy}"], data=data)

    jobs = [job("digits", 0.5), job("photos", 0.9), REFUSED, job("photos", 0.95), job("digits", 0.6)]
    report_sweep(jobs, tmp_path)
    printed = capsys.readouterr().out
    assert "5 runs, best first within each data set" in printed
    ranked = [record["overrides"] for record in json.loads((tmp_path / "sweep.json").read_text())]
    assert ranked == [jobs[place].overrides for place in (4, 0, 3, 1, 2)]


def test_jobs_of_different_losses_are_ranked_apart(compose, tmp_path, capsys):
    def job(loss, value):
        file = tmp_path / loss / "summary.json"
        config = compose("task=regress", "data=npz", "data.path=a.npz", f"loss={loss}", f"run.dir={tmp_path}")
        begun = replace(begin_outcome(config, [f"loss={loss}"]), file=str(file), ended_with=0)
        file.parent.mkdir()
        write_json(file, {"best": {"loss": value}, "best_by": {"metric": "loss", "higher_is_better": False}})
        return begun

    jobs = [job("squared_error", 1.5), job("huber", 0.5)]
    assert [each.ranked_by for each in jobs] == ["squared_error", "huber delta=1"]
    report_sweep(jobs, tmp_path / "none")
    printed = capsys.readouterr().out
    assert "2 runs, best first within each metric" in printed
    assert printed.index("squared_error") < printed.index("huber"), "the lower loss is no better one"


@pytest.mark.parametrize("differing", ["data.classes", "data.tokenizer", "data.val.files"])
def test_jobs_on_other_content_of_the_same_name_are_ranked_apart(outcome, tmp_path, capsys, differing):
    """As with another label column, tokenizer or path."""
    jobs = []
    for place, (accuracy, fact) in enumerate([(0.5, "a"), (0.9, "b"), (0.6, "a")]):
        summary = {"best": {"accuracy": accuracy}, "best_on": "val", "data": {differing: fact, "data.val.files": "x"}}
        summary["data"][differing] = fact
        done = outcome(0, f"train-{place}", summary)
        jobs.append(replace(done, job="train", overrides=[f"data.path={fact}.csv", f"n={place}"], data="labels"))
    report_sweep(jobs, tmp_path)
    assert "3 runs, best first within each data set" in capsys.readouterr().out
    ranked = [record["overrides"][1] for record in json.loads((tmp_path / "sweep.json").read_text())]
    assert ranked == ["n=2", "n=0", "n=1"]


def test_keys_of_a_loss_that_evaluations_measure_tell_it_apart():
    huber = {"loss.kind": "huber", "loss.delta": 2.0}
    smoothed = {"loss.kind": "cross_entropy", "loss.label_smoothing": 0.1, "loss.class_weights.cat": 2.0}
    own = {"loss.kind": "of_ones_own", "loss.temperature": 0.1}
    assert [describe_loss(loss) for loss in (huber, smoothed, own, {})] == [
        "huber delta=2",
        "cross_entropy",
        "of_ones_own temperature=0.1",
        "",
    ]


def test_a_result_of_an_earlier_command_is_not_that_of_the_job(compose, tmp_path):
    config = compose(f"run.dir={tmp_path}", "run.name=mine")
    file = tmp_path / "mine" / "summary.json"
    file.parent.mkdir()
    assert begin_outcome(config, []).result == {}
    file.write_text(json.dumps(TEST))
    os.utime(file, ns=(0, 0))
    assert begin_outcome(config, []).result == {}
    before = begin_outcome(config, ["batch_size=32"])
    write_json(file, TEST)
    assert before.value("test.loss") == 1.5
    assert (before.value("test.top5"), before.value("val.loss")) == (None, None)
    assert (before.job, before.path, before.overrides) == ("train", str(file.parent), ["batch_size=32"])
