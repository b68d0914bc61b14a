"""job=lr: the rates that are tried, the suggestion and its reason, and the files that stay."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest

from accumtrain.dispatch import run
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.measure.range_test import RangeTest, draw_range_test, suggest_rate
from accumtrain.runs.names import MARK

SMALL = ("job=lr", "model=lenet5", "optim=sgd", "batch_size=32", "accum.steps=2", "run.name=one")


@pytest.fixture
def config(compose, tmp_path):
    return lambda *more: compose(*SMALL, f"run.dir={tmp_path}", *more)


def raised(losses) -> RangeTest:
    test = RangeTest()
    for number, loss in enumerate(losses):
        if not test.diverged:
            test.add(10.0 ** (number / 10 - 6), loss)
    return test


def test_the_rate_rises_exponentially_and_nothing_trained_stays(config, tmp_path, capsys):
    result = run(config("range_test.updates=40", "range_test.low=1e-4", "range_test.high=3"))
    rates = [point["rate"] for point in result["points"]]
    np.testing.assert_allclose(rates, np.geomspace(1e-4, 3, 40)[: len(rates)], rtol=1e-4)
    assert 1e-3 < result["suggested"] < 1
    assert result["suggested"] <= result["lowest"]["rate"] / 10 * 1.05
    assert f"suggested: optim.lr={result['suggested']:.2g}" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "trials/lr-one").iterdir()}
    assert names == {MARK, "lr.json", "lr.png"}
    assert json.loads((tmp_path / "trials/lr-one/lr.json").read_text())["suggested"] == result["suggested"]


def test_the_schedule_and_the_configured_rate_change_nothing(config):
    options = ("range_test.updates=4", "range_test.low=1e-3", "range_test.high=1e-2")
    one = run(config(*options))
    other = run(config(*options, "optim.lr=7", "schedule=constant", "schedule.warmup=9"))
    losses = [[point["loss"] for point in found["points"]] for found in (one, other)]
    np.testing.assert_allclose(*losses, rtol=1e-4)


def test_a_rate_that_the_optimizer_computes_is_refused(config):
    with pytest.raises(ConfigError, match=r"optim\.lr=null: the optimizer computes its own rate.*optim\.lr=0\.05"):
        run(config("optim=adafactor", "optim.lr=null"))


def test_it_ends_where_the_loss_diverges():
    test = raised([*np.linspace(2.3, 0.5, 30), *(0.5 * 3.0 ** np.arange(20))])
    assert test.diverged
    assert 30 < len(test.points) < 40
    assert raised([2.3, 2.2, math.nan, 2.0]).diverged
    assert len(raised([2.3, 2.2, math.inf, 2.0]).points) == 2


def test_a_test_that_diverges_says_where_it_stopped(config, capsys):
    result = run(config("range_test.updates=60", "range_test.low=1e-2", "range_test.high=1e4"))
    assert result["diverged"]
    stopped = re.search(r"stopped at update (\d+) of 60, because the loss diverged", capsys.readouterr().out)
    assert stopped is not None
    assert len(result["points"]) <= int(stopped[1]) < 60


def test_the_smaller_of_the_two_rates_is_suggested():
    fast = suggest_rate(raised([2.0] * 10 + [1.0] * 1 + [0.8] * 30 + [0.79] * 20))
    assert fast.rate == pytest.approx(fast.steepest.rate, rel=0.05)
    assert "the first is the smaller" in fast.reason
    late = raised([2.0] * 30 + [1.0] * 3 + [30.0] * 5)
    assert suggest_rate(late).rate == pytest.approx(late.lowest.rate / 10, rel=0.05)


@pytest.mark.parametrize("losses", [[], [2.0], [2.0, 2.1, 2.2, 9.0, 30.0], [math.nan]])
def test_a_loss_that_does_not_fall_suggests_nothing(losses, tmp_path):
    test = raised(losses)
    found = suggest_rate(test)
    assert found.rate is None
    assert "range_test.low" in found.reason
    draw_range_test(test, found, "a $title$", tmp_path / "lr.png")
    assert (tmp_path / "lr.png").stat().st_size > 0


def test_a_picture_that_cannot_be_written_says_so(tmp_path):
    test = raised(np.linspace(2.3, 0.5, 30))
    with pytest.raises(CheckpointError, match=r"lr\.png"):
        draw_range_test(test, suggest_rate(test), "title", tmp_path / "nothing" / "lr.png")
