"""A forgotten `reading` shows in these tests: until then a variable that a program has changed is NaN."""

import math

import pytest


@pytest.fixture(autouse=True)
def stale(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = pytest.importorskip("accumtrain.pjrt.runtime")
    monkeypatch.setitem(runtime.JaxRuntime.__init__.__kwdefaults__, "stale", math.nan)
