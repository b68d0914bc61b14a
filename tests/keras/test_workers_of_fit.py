"""`model.fit` on two worker processes of this machine, with either door, against one big batch in one process."""

import json
import subprocess
import sys
from typing import Any

import pytest

from accumtrain.cli.workers import find_free_ports
from tests.keras.matrix import FLOAT64, beyond
from tests.keras.programs import ENVIRONMENT, ROOT

pytestmark = pytest.mark.slow


def on_two_workers(*arguments: str, seconds: int = 120) -> dict[str, Any]:
    """Return what `python arguments` prints last, the same on both workers."""
    workers = [f"localhost:{port}" for port in find_free_ports(2)]
    started = []
    try:
        for index in range(2):
            task = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
            environment = {**ENVIRONMENT, "TF_CONFIG": json.dumps(task)}
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


@pytest.mark.parametrize("model", ["mlp", "cnn", "lstm", "two_outputs"])
def test_all_optimizers(model):
    found = on_two_workers("-m", "tests.keras.matrix", "--models", model, "--steps", "2", "4", seconds=600)
    assert len(found) == 2 * 8 * 2
    assert not beyond(found)


@pytest.fixture(scope="module")
def fits():
    return on_two_workers("-m", "tests.keras.fit_on_workers")


@pytest.mark.parametrize("door", ["Accumulate", "accumulate"])
def test_one_collective_per_update(fits, door):
    # Keras reduces 6 inputs and 3 targets of each example to build the model; the update reduces all weights at once
    examples = 8 if door == "Accumulate" else 24
    assert fits["collectives"][door] == [examples * 6, examples * 3, 83]


@pytest.mark.parametrize("at_end", ["keep", "flush"])
def test_a_window_goes_on_in_the_next_fit_or_is_flushed(fits, at_end):
    assert fits[at_end] <= FLOAT64


def test_a_worker_without_an_example_changes_nothing(fits):
    weights, metrics = fits["without an example"]
    assert weights <= FLOAT64
    assert metrics <= FLOAT64


def test_an_overflow_on_one_worker_makes_no_update_on_any(fits):
    assert fits["overflow"] == {"moved": False, "scale": 0.5, "moved by the next": True, "updates": 1}
