"""Calls of several updates end at whatever is due; the means of the last updates."""

from fractions import Fraction

import pytest

from accumtrain.config.arithmetic import Epochs
from accumtrain.train.metrics import Intervals, RunningMeans

CASES = [
    ("log.every=10", "eval.every=epoch", "checkpoint.every=200"),
    ("log.every=7", "eval.every=5", "checkpoint.every=11"),
    ("log.every=1000", "eval.every=1000", "checkpoint.every=1000"),
    ("log.every=1", "eval.every=1", "checkpoint.every=1"),
]


def intervals(config, total, epochs, hooks=()):
    every = {"log": config.log.every, "evaluate": config.eval.every, "checkpoint": config.checkpoint.every}
    return Intervals(total, epochs, **every, hooks=hooks)


@pytest.mark.parametrize("overrides", CASES)
@pytest.mark.parametrize("examples", [20, 64, 100, 1437])
def test_next_misses_nothing_and_stops_for_nothing_else(compose, overrides, examples):
    total, config = 60, compose("batch_size=64", *overrides)
    due = intervals(config, total, Epochs(config, examples), hooks=[13, 17])
    due_at = [due.log, due.evaluation, due.checkpoint, lambda n: n % 13 == 0, lambda n: n % 17 == 0]
    expected = [n for n in range(1, total + 1) if any(is_due(n) for is_due in due_at)]
    visited = [0]
    while visited[-1] < total:
        visited.append(due.next(visited[-1]))
    assert visited[1:] == expected
    assert all(due.next(n) > n and due.next(n) in expected for n in range(total))


@pytest.mark.parametrize("overrides", CASES)
@pytest.mark.parametrize("examples", [20, 64, 1437])
def test_evaluations_that_are_left(compose, overrides, examples):
    total, config = 60, compose("batch_size=64", *overrides)
    due = intervals(config, total, Epochs(config, examples))
    left = [sum(map(due.evaluation, range(done, total + 1))) for done in range(total + 1)]
    assert [due.evaluations_from(done) for done in range(total + 1)] == left


def test_evaluation_after_the_update_that_completes_an_epoch(compose):
    config = compose("batch_size=64", "eval.every=epoch")
    due = intervals(config, 1000, Epochs(config, 100))
    assert [n for n in range(9) if due.evaluation(n)] == [2, 4, 5, 7, 8]  # epochs end within updates 2, 4, 5, 7, 8


def test_calls_end_at_epochs_if_hooks_are_called_there(compose):
    config = compose("batch_size=64", "log.every=1000", "eval.every=1000", "checkpoint.every=1000")
    epochs = Epochs(config, 100)
    due = Intervals(9, epochs, log=1000, evaluate=1000, checkpoint=1000, at_epochs=True)
    assert [n for n in range(10) if due.epoch_end(n)] == [2, 4, 5, 7, 8, 9]
    assert [due.next(n) for n in range(9)] == [1, 2, 4, 4, 5, 7, 7, 8, 9]


def test_the_first_and_the_last_update(compose):
    config = compose("log.every=10", "eval.every=400", "checkpoint.every=400")
    due = intervals(config, 35, Epochs(config, 100))
    assert [n for n in range(1, 36) if due.log(n)] == [1, 10, 20, 30, 35]
    assert [n for n in range(36) if due.evaluation(n)] == [35]
    assert [n for n in range(1, 36) if due.checkpoint(n)] == [35]


def test_evaluations_after_each_epoch_that_began_with_another_batch_size(compose):
    config = compose("batch_size=64", "eval.every=epoch")
    epochs = Epochs(config, 100)
    epochs.restore(10, Fraction(13, 10))
    due = intervals(config, 1000, epochs)
    assert [n for n in range(11, 20) if due.evaluation(n)] == [12, 13, 15, 16, 18, 19]  # 2.58, 3.22, 4.5, 5.14, ...


def one(loss, weight=4.0):
    return 1, {"loss": loss, "weight": weight}


def several(updates, last, loss, weight):
    """A call of several updates: their sums beside the loss of the last one."""
    return updates, {"loss": last, "weight": 4.0, "sum_loss": loss, "sum_weight": weight}


@pytest.mark.parametrize(
    ("every", "calls", "expected"),
    [
        (10, [one(2.0)], 2.0),
        (10, [one(2.0), one(1.0)], 1.5),
        (3, [one(9.0), one(9.0), one(1.0), one(2.0), one(3.0)], 2.0),
        (10, [one(1.0, weight=1.0), one(4.0, weight=2.0)], 3.0),
        (10, [one(5.0), several(9, 0.5, 40.0, 36.0)], pytest.approx(60 / 40)),
        (10, [one(5.0), several(9, 0.5, 40.0, 36.0), several(10, 0.5, 20.0, 40.0)], 0.5),
    ],
    ids=["of one", "until there are enough, of all", "old ones are forgotten", "each example counts once",
         "a call counts with all of its updates", "the ten before are older than log.every"],
)  # fmt: skip
def test_the_means_of_the_last_updates(every, calls, expected):
    means = RunningMeans(["loss"], every)
    for updates, result in calls:
        means.add(updates, result)
        means.read()
    assert means.read() == {"loss": expected}
