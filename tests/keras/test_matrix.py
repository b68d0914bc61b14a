"""Both doors of accumulation against one big batch: models x optimizers x micro-batches x replicas x precisions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import accumtrain

ROOT = Path(accumtrain.__file__).parents[1]
FLOAT64 = 1e-12  # of the distance the weights have gone
HALF = 1e-2  # in half precision sums over a micro-batch are rounded where those over the batch were


def differences(*arguments: str) -> dict[str, float]:
    """What `tests/keras/matrix.py` prints, in a process of its own: logical devices must exist before TensorFlow."""
    command = [sys.executable, "-m", "tests.keras.matrix", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def beyond(found: dict[str, float], bound: float) -> dict[str, float]:
    return {case: apart for case, apart in found.items() if not apart <= bound}


@pytest.mark.slow
def test_updates_are_those_of_the_big_batch():
    found = differences("--models", "mlp", "lstm", "--optimizers", "sgd", "adam", "own", "--steps", "4")
    assert len(found) == 12
    assert not beyond(found, FLOAT64)


@pytest.mark.slow
def test_so_they_are_on_two_replicas():
    found = differences("--models", "two_outputs", "--optimizers", "adam", "--steps", "2", "--replicas", "2")
    assert len(found) == 2
    assert not beyond(found, FLOAT64)


@pytest.mark.slow
def test_a_sum_of_losses_beside_penalties_on_two_replicas():
    arguments = ("--steps", "2", "4", "--replicas", "2", "--doors", "accumulate", "--updates", "2")
    found = differences("--models", "summed", "--optimizers", "sgd", *arguments)
    assert len(found) == 2
    assert not beyond(found, FLOAT64)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "cnn", "mobilenet", "lstm", "two_outputs"])
def test_all_optimizers(model):
    found = differences("--models", model)
    assert len(found) == 2 * 8 * 3
    assert not beyond(found, FLOAT64)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", ["2", "4"])
def test_all_optimizers_on_replicas(replicas):
    found = differences("--models", "mlp", "cnn", "lstm", "two_outputs", "--steps", "2", "4", "--replicas", replicas)
    assert len(found) == 4 * 8 * 4
    assert not beyond(found, FLOAT64)


@pytest.mark.slow
@pytest.mark.xla
def test_all_optimizers_with_xla():
    found = differences("--models", "mlp", "cnn", "lstm", "two_outputs", "--steps", "4", "--jit")
    assert len(found) == 4 * 8 * 2
    assert not beyond(found, FLOAT64)


def first_updates(policy: str) -> dict[str, float]:
    arguments = ("--optimizers", "sgd", "adam", "lion", "own", "--updates", "1", "--policy", policy)
    found = differences("--models", "mlp", "cnn", "lstm", "two_outputs", "--steps", "2", "4", "8", *arguments)
    assert len(found) == 4 * 4 * (3 * 2 + policy.startswith("mixed"))
    return found


@pytest.mark.slow
def test_the_first_update_in_float32():
    assert not beyond(first_updates("float32"), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_the_first_update_in_half_precision(policy):
    """Two updates that are each as far from float32's as the precision rounds are at most twice as far apart.

    How far that is depends on the processor: Adam and Lion make a whole step of a gradient near 0, whatever its sign.
    """
    found = first_updates(policy)
    errors = {case.partition(" ")[2]: apart for case, apart in found.items() if case.startswith("error")}
    for case, apart in found.items():
        door, model, optimizer, *_ = case.split()
        assert door == "error" or apart <= max(2 * errors[f"{model} {optimizer}"], HALF), (case, apart)
