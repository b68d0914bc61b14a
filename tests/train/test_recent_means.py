"""Means over the last updates, from single updates and from calls of several."""

from __future__ import annotations

import pytest

from accumtrain.train.metrics import RunningMeans


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
