"""Calls grow to their length, and shrink at once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from accumtrain.engine import step


@pytest.fixture
def lengths(monkeypatch):
    """The lengths of calls whose parts take these seconds."""

    def of(paced, seconds):
        chosen = []
        for each in seconds:
            count = paced.next(1000)
            times = iter([0.0, each * count])
            monkeypatch.setattr(step, "time", SimpleNamespace(perf_counter=lambda times=times: next(times)))
            with paced.timed(count):
                chosen.append(count)
        return chosen

    return of


def test_doubles_up_to_half_a_second(lengths):
    assert lengths(step.CallLength(), [5.0, *[0.05] * 5]) == [1, 1, 2, 4, 8, 10]


def test_shrinks_at_once(lengths):
    assert lengths(step.CallLength(), [0.01, 0.01, 0.2, 0.2, 1.0, 1.0]) == [1, 2, 4, 2, 2, 1]


def test_one_that_fits_is_one(lengths):
    assert lengths(step.CallLength(), [0.3] * 4) == [1, 1, 1, 1]


def test_as_many_as_are_worth_it_are_taken(lengths):
    assert lengths(step.CallLength(10), [0.05] * 5) == [1, 2, 4, 8, 10]


def test_never_beyond_what_remains():
    paced = step.CallLength()
    for _ in range(5):
        with paced.timed(paced.next(3)):
            pass
    assert paced.next(3) == 3


def test_takes_one_where_few_would_fit(lengths):
    assert lengths(step.CallLength(10), [0.06] * 4) == [1, 1, 1, 1]
    assert lengths(step.CallLength(10), [0.04, 0.04, 0.04, 0.06, 0.06]) == [1, 2, 4, 8, 1]
