"""The time that is left, counted from the start of the process."""

from __future__ import annotations

import pytest

from accumtrain.process import watchdog
from accumtrain.process.watchdog import Deadline


@pytest.fixture
def clock(monkeypatch):
    """A clock to set, in a process that started 100 s ago."""
    now = [0.0]
    monkeypatch.setattr(watchdog, "process_seconds", lambda: 100.0)
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: now[0])
    return now


def test_it_ends(clock):
    left = Deadline(160.0)
    assert not left.due(30)
    clock[0] = 20.0
    assert not left.due(30)
    clock[0] = 31.0
    assert left.due(30)
    assert not left.due(5)


def test_it_never_ends(clock):
    left = Deadline(None)
    clock[0] = 1e9
    assert not left.due(1e9)
