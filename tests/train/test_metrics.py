"""Calls of several updates end at whatever is due; the means of the last updates."""

from __future__ import annotations

from fractions import Fraction

import pytest

from accumtrain.config.rules import Epochs
from accumtrain.train.metrics import Intervals, RunningMeans

CASES = [
    ("log.every=10", "eval.every=epoch", "checkpoint.every=200"),
    ("log.every=7", "eval.every=5", "checkpoint.every=11"),
    ("log.every=1000", "eval.every=1000", "checkpoint.every=1000"),
    ("log.every=1", "eval.every=1", "checkpoint.every=1"),
]


def due_of(config, total, examples, hooks=()):
    return intervals(config, total, Epochs(config, examples), hooks)


def intervals(config, total, epochs, hooks=()):
    every = {"log": config.log.every, "evaluate": config.eval.every, "checkpoint": config.checkpoint.every}
    return Intervals(total, epochs, **every, hooks=hooks)


@pytest.mark.parametrize("overrides", CASES)
@pytest.mark.parametrize("examples", [20, 64, 100, 1437])
def test_next_misses_nothing_and_stops_for_nothing_else(compose, overrides, examples):
    total = 60
    due = due_of(compose("batch_size=64", *overrides), total, examples, hooks=[13, 17])
    expected = [
        n
        for n in range(1, total + 1)
        if due.log(n) or due.evaluation(n) or due.checkpoint(n) or n % 13 == 0 or n % 17 == 0
    ]
    visited = [0]
    while visited[-1] < total:
        visited.append(due.next(visited[-1]))
    assert visited[1:] == expected
    assert all(due.next(n) > n and due.next(n) in expected for n in range(total))


def test_evaluation_after_the_update_that_completes_an_epoch(compose):
    due = due_of(compose("batch_size=64", "eval.every=epoch"), 1000, 100)
    assert [n for n in range(9) if due.evaluation(n)] == [2, 4, 5, 7, 8]  # epochs end within updates 2, 4, 5, 7, 8


def test_the_first_and_the_last_update(compose):
    due = due_of(compose("log.every=10", "eval.every=400", "checkpoint.every=400"), 35, 100)
    assert [n for n in range(1, 36) if due.log(n)] == [1, 10, 20, 30, 35]
    assert [n for n in range(36) if due.evaluation(n)] == [35]
    assert [n for n in range(1, 36) if due.checkpoint(n)] == [35]


def test_evaluations_after_each_epoch_that_began_with_another_batch_size(compose):
    config = compose("batch_size=64", "eval.every=epoch")
    epochs = Epochs(config, 100)
    epochs.restore(10, Fraction(13, 10))
    due = intervals(config, 1000, epochs)
    assert [n for n in range(11, 20) if due.evaluation(n)] == [12, 13, 15, 16, 18, 19]  # 2.58, 3.22, 4.5, 5.14, ...


def one(loss, examples=4.0):
    return {"loss": loss, "examples": examples}


def test_until_there_are_enough_all_updates_count():
    means = RunningMeans(["loss"], 10)
    means.add(1, one(2.0))
    assert means.read() == {"loss": 2.0}
    means.add(1, one(1.0))
    assert means.read() == {"loss": 1.5}


def test_old_updates_are_forgotten():
    means = RunningMeans(["loss"], 3)
    for loss in (9.0, 9.0, 1.0, 2.0, 3.0):
        means.add(1, one(loss))
    assert means.read() == {"loss": 2.0}


def test_each_example_counts_once():
    means = RunningMeans(["loss"], 10)
    means.add(1, one(1.0, examples=1.0))
    means.add(1, one(4.0, examples=2.0))
    assert means.read() == {"loss": 3.0}


def test_a_call_counts_with_all_of_its_updates():
    means = RunningMeans(["loss"], 10)
    means.add(1, one(5.0))
    means.add(9, {**one(0.5), "sum_loss": 40.0, "sum_examples": 36.0})
    assert means.read() == {"loss": pytest.approx(60 / 40)}
    means.add(10, {**one(0.5), "sum_loss": 20.0, "sum_examples": 40.0})
    assert means.read() == {"loss": 0.5}, "the ten before are older than log.every"
