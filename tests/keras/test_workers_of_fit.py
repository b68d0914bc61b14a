"""`model.fit` on two worker processes of this machine, with either door, against one big batch in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import accumtrain
from accumtrain.cli.workers import free_ports

ROOT = Path(accumtrain.__file__).parents[1]
FLOAT64 = 1e-12  # of the distance the weights have gone


def on_two_workers(*arguments: str, seconds: int = 120) -> dict[str, Any]:
    """What `python arguments` prints last, the same on both workers."""
    workers = [f"localhost:{port}" for port in free_ports(2)]
    started = []
    try:
        for index in range(2):
            task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CONFIG": json.dumps(task)}
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            started.append(subprocess.Popen([sys.executable, *arguments], cwd=ROOT, env=environment, **pipes))
        said = [process.communicate(timeout=seconds) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(started, said, strict=True):
        assert process.returncode == 0, errors[-4000:]
    first, second = (json.loads(out.splitlines()[-1]) for out, _ in said)
    assert first == second
    return first


def matrix(*arguments: str, seconds: int = 120) -> dict[str, float]:
    return on_two_workers("-m", "tests.keras.matrix", *arguments, seconds=seconds)


def beyond(found: dict[str, float]) -> dict[str, float]:
    return {case: apart for case, apart in found.items() if not apart <= FLOAT64}


@pytest.mark.slow
def test_updates_are_those_of_the_big_batch():
    found = matrix("--models", "mlp", "--optimizers", "sgd", "adam", "--steps", "4", "--updates", "3")
    assert len(found) == 4
    assert not beyond(found)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "cnn", "lstm", "two_outputs"])
def test_all_optimizers(model):
    found = matrix("--models", model, "--steps", "2", "4", seconds=600)
    assert len(found) == 2 * 8 * 2
    assert not beyond(found)


@pytest.fixture(scope="module")
def fits():
    return on_two_workers("-m", "tests.keras.fit_on_workers")


@pytest.mark.slow
@pytest.mark.parametrize("door", ["Accumulate", "accumulate"])
def test_one_collective_per_update(fits, door):
    # Keras reduces 6 inputs and 3 targets of each example to build the model; the update reduces all weights at once
    examples = 8 if door == "Accumulate" else 24
    assert fits["collectives"][door] == [examples * 6, examples * 3, 83]


@pytest.mark.slow
def test_a_window_goes_on_in_the_next_fit(fits):
    assert fits["keep"] <= FLOAT64


@pytest.mark.slow
def test_a_window_is_flushed_at_the_end_of_fit(fits):
    assert fits["flush"] <= FLOAT64


@pytest.mark.slow
def test_a_worker_without_an_example_changes_nothing(fits):
    weights, metrics = fits["without an example"]
    assert weights <= FLOAT64
    assert metrics <= FLOAT64


def test_an_overflow_on_one_worker_makes_no_update_on_any(fits):
    assert fits["overflow"] == {"moved": False, "scale": 0.5, "moved by the next": True, "updates": 1}
