"""job=verify finds every planted fault, and nothing where there is none."""

from __future__ import annotations

import pytest

from accumtrain.errors import VerificationError
from accumtrain.jobs.dispatch import run
from tests.planted.faults import FAULTS

FAST = {"labels + 1"}
VERIFY = ("job=verify", "batch_size=8", "accum.steps=2", "run.name=one")


@pytest.fixture(autouse=True)
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "fault",
    [pytest.param(each, id=each.name, marks=() if each.name in FAST else pytest.mark.slow) for each in FAULTS],
)
def test_a_planted_fault_is_found(compose, monkeypatch, fault):
    config = compose(*VERIFY, *fault.overrides)
    fault.plant(monkeypatch)
    with pytest.raises(VerificationError):
        run(config)


@pytest.mark.slow
@pytest.mark.parametrize("overrides", sorted({fault.overrides for fault in FAULTS}), ids=" ".join)
def test_healthy_code_passes(compose, overrides):
    run(compose(*VERIFY, *overrides))
