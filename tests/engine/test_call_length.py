"""Calls grow to their length, and shrink at once."""

from types import SimpleNamespace

import pytest

from accumtrain.engine import step
from accumtrain.engine.step import CallLength


@pytest.mark.parametrize(
    ("least", "seconds", "lengths"),
    [
        (1, [5.0, *[0.05] * 5], [1, 1, 2, 4, 8, 10]),  # doubles up to half a second
        (1, [0.01, 0.01, 0.2, 0.2, 1.0, 1.0], [1, 2, 4, 2, 2, 1]),  # shrinks at once
        (1, [0.3] * 4, [1, 1, 1, 1]),
        (10, [0.05] * 5, [1, 2, 4, 8, 10]),
        (10, [0.06] * 4, [1, 1, 1, 1]),  # too few would fit
        (10, [0.04, 0.04, 0.04, 0.06, 0.06], [1, 2, 4, 8, 1]),
    ],
)
def test_the_length_follows_the_seconds_of_a_part(least, seconds, lengths, monkeypatch):
    length, chosen = CallLength(least), []
    for duration in seconds:
        count = length.next(1000)
        times = iter([0.0, duration * count])
        monkeypatch.setattr(step, "time", SimpleNamespace(perf_counter=lambda times=times: next(times)))
        with length.timed(count):
            chosen.append(count)
    assert chosen == lengths


def test_never_beyond_what_remains():
    length = CallLength()
    for _ in range(5):
        with length.timed(length.next(3)):
            pass
    assert length.next(3) == 3
